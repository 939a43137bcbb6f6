"""FEROMA at test time: who answers a visitor, and that none of its labels is looked at."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from feroma_tasks import GROUPS, OnQuadratics, W, crowd_of, draw, grouped, played
from torch import Tensor

from fedlib import profiles
from fedlib.data.federation import Client, Federation, Visitor
from fedlib.forward import class_scores
from fedlib.methods.feroma import local_model
from fedlib.metrics import Crowd


def visitor(group: int, seed: int, labels: Tensor | None = None, few: int = 0, shift: int = 0) -> Visitor:
    samples = draw(50, group, seed, shift)
    return Visitor(
        0, replace(samples, labels=samples.labels if labels is None else labels), draw(few, group, 9, shift), group
    )


def test_a_visitor_is_answered_by_the_client_of_the_nearest_profile_without_any_label():
    groups = (0, 1, 0, 1, 2, 2)
    fed, method = grouped(groups), OnQuadratics()
    now = played(method, fed, 4)[-1]
    crowd = crowd_of(method, fed, now)
    for group in (0, 1, 2):
        here = visitor(group, 77 + group)
        j = method.match(crowd, here)
        assert j is not None and groups[j] == group
        assert method.match(crowd, visitor(group, 77 + group, torch.full((50,), -7))) == j
        crowd.model.load_state_dict(local_model(now.server, j))
        assert torch.equal(method.visit(crowd, here), class_scores(crowd.model, here.samples.images))
    exact = Visitor(0, fed.clients[4].validation, draw(0, 0, 0), 2)
    plain = OnQuadratics(samplings=0)
    crowd = crowd_of(plain, fed, played(plain, fed, 3)[-1])
    D = plain.distances_to(crowd, exact)
    assert plain.match(crowd, exact) == 4 and D[4] == 0 and (D[:4] > 0).all()


def test_only_clients_of_the_last_round_answer_and_ties_go_to_the_lowest():
    method, fed = OnQuadratics(samplings=0), grouped(same=True)
    seen = played(method, fed, 5, leaves={1: 3})
    crowd = crowd_of(method, fed, seen[-1])
    assert method.match(crowd, visitor(1, 5)) == 3 and method.match(crowd, visitor(0, 5)) == 0
    assert method.distances_to(crowd, visitor(1, 5)).isinf().tolist() == [False, True, False, False, False, False]
    early = crowd_of(method, fed, seen[W - 1])
    assert method.match(early, visitor(1, 5)) is None
    all_served = torch.stack([class_scores_of(early, j) for j in range(6)]).softmax(-1).mean(0)
    torch.testing.assert_close(method.visit(early, visitor(1, 5)), all_served)


def class_scores_of(crowd: Crowd, j: int) -> Tensor:
    crowd.model.load_state_dict(local_model(crowd.server, j))
    return class_scores(crowd.model, visitor(1, 5).samples.images)


def test_a_private_visitor_sends_a_noisy_profile():
    fed, exact = grouped(), OnQuadratics(samplings=0)
    crowd = crowd_of(exact, fed, played(exact, fed, 4)[-1])
    d, found = exact.profile_of(crowd, visitor(0, 70)), {}
    for epsilon in (1e7, 1.0):
        method = OnQuadratics(samplings=0, epsilon=epsilon, noise="laplace")
        found[epsilon] = (method.profile_of(crowd, visitor(0, 70)) - d).abs().max()
    assert found[1e7] < 1e-3 and found[1.0] > 0.05


@pytest.mark.parametrize("option", [{"distance": "cosine"}, {"masked": True}, {"temperature": "median"}])
def test_options_reach_the_scaler_the_distances_and_the_weights(option: dict):
    """Client 1 holds no sample of class 0: an absent label."""
    fed, method, plain = grouped(), OnQuadratics(samplings=0, **option), OnQuadratics(samplings=0)
    held = fed.clients[1].validation
    there = held.labels > 0
    lacking = replace(fed.clients[1], validation=replace(held, images=held.images[there], labels=held.labels[there]))
    fed = replace(fed, clients=(fed.clients[0], lacking, *fed.clients[2:]))
    seen, ell = played(method, fed, 4), 3

    def expected(how: OnQuadratics) -> tuple[Tensor, Tensor, Tensor]:
        """D and w of round 4 and the visitor's D, from the profiles kept, by fedlib.profiles alone."""
        low, span = profiles.fit_scaler(seen[W].server.memory["d"], ell, how.masked)
        now, before = (profiles.scale(seen[t].server.memory["d"], low, span, ell, how.masked) for t in (3, 2))
        D = profiles.distances(now, before, how.distance)
        w = profiles.softmax_weights(D, None if how.temperature == "median" else 1.0)
        theirs = profiles.scale(method.profile_of(crowd, here)[None], low, span, ell, how.masked)
        return D, w, profiles.distances(theirs, now[:, : 2 * ell], how.distance)[0]

    here, crowd, kept = visitor(1, 70), crowd_of(method, fed, seen[-1]), seen[-1].server.memory
    D, w, visiting = expected(method)
    torch.testing.assert_close(kept["D"], D)
    torch.testing.assert_close(kept["w"], w)
    torch.testing.assert_close(method.distances_to(crowd, here), visiting)
    assert not torch.allclose(w, expected(plain)[1], atol=1e-3)


@pytest.mark.parametrize("masked", [False, True])
def test_a_few_labels_find_the_client_of_the_same_concept(masked: bool):
    """P(Y|X): all images alike, the labels moved on by one in three of six clients. Without labels nothing tells."""
    clients = []
    for i, g in enumerate(GROUPS):
        parts = (draw(30, 0, 10 + 3 * i, g, True), draw(200, 0, 11 + 3 * i, g, True), draw(9, 0, 12 + 3 * i, g, True))
        clients.append(Client(i, *parts))
    fed = Federation("concepts", tuple(clients), ("a", "b", "c"), (3, 1, 1))
    method, blind = OnQuadratics(labelled=True, masked=masked), OnQuadratics(masked=masked)
    now = played(method, fed, 4)[-1]
    crowd = crowd_of(method, fed, now)
    for shift in (0, 1):
        here = visitor(0, 70, few=60, shift=shift)
        found = method.match(crowd, here)
        assert found is not None and GROUPS[found] == shift
        poisoned = replace(here, samples=replace(here.samples, labels=torch.full((50,), -7)))
        assert method.match(crowd, poisoned) == found
        d = method.profile_of(crowd, here)
        assert len(d) == 24 and torch.equal(d[:6], blind.profile_of(crowd, here))
    assert len({blind.match(crowd, visitor(0, 70, few=60, shift=shift)) for shift in (0, 1)}) == 1
    assert method.match(crowd, visitor(0, 70)) == blind.match(crowd, visitor(0, 70))
