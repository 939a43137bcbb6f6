"""Clients that are met at test time alone: who answers them, and how well (FEROMA spec, 1.7 and 4)."""

from __future__ import annotations

import torch

from fedlib.data.federation import Federation
from fedlib.forward import accuracy
from fedlib.labels import answers, known, quality
from fedlib.metrics import Crowd, Row


def visitors(crowd: Crowd, federation: Federation) -> list[Row]:
    """The probe, one value a visitor and their plain mean; nothing where the federation has no visitors.

    served@visitors: top-1 of the method's own rule for clients of which nothing is known (Method.visit).
    personal@visitors: top-1 of client k's own model on visitor k's samples, the paper's "known association"; the
        two have one distribution only under P(Y|X).
    match@visitors: whether the model that answers is of a client with the visitor's distribution, 0 or 1, for methods
        that let one client's model answer. chance@visitors: the share of clients that have it.

    Where samples may have several labels, the macro AUROC is in the place of top-1, and visitors that have none are
    left out, as clients are (see metrics).
    """
    distributions = [client.distribution for client in federation.clients]
    found: dict[str, list[float]] = {}
    for visitor in federation.visitors:
        j = crowd.method.match(crowd, visitor)
        scores = crowd.method.answer(crowd, visitor, j)
        truth = visitor.samples.labels
        found.setdefault("served@visitors", []).append(float(quality(answers(scores, truth), truth)))
        if j is not None:
            same = [held == visitor.distribution for held in distributions]
            found.setdefault("match@visitors", []).append(float(same[j]))
            found.setdefault("chance@visitors", []).append(sum(same) / len(same))
        crowd.model.load_state_dict(crowd.states[visitor.index])
        own = accuracy(crowd.model, visitor.samples, crowd.method.class_logits)
        found.setdefault("personal@visitors", []).append(float(own))
    moment = crowd.method.moment(crowd.server.round, crowd.site.task.rounds if crowd.site else crowd.server.round)
    rows = []
    for metric, values in found.items():
        one = torch.tensor(values)
        seen = known(one, "visitor", federation.several_labels)
        each = [(k, values[k]) for k in seen.nonzero().flatten().tolist()] + [(-1, float(one[seen].mean()))]
        rows += [Row(crowd.server.round, metric, moment, client, value) for client, value in each]
    return rows
