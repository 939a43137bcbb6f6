"""make_federation with the official test part: who holds what, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedlib.checks import FedlibError
from fedlib.data.federation import make_federation
from fedlib.data.pool import Pool

BY_DOMAIN = {"name": "by_domain", "allocation": [1, 2], "share": 0.4}


def pool(test_of_second: bool = True) -> Pool:
    """60 images of two domains, the pixel being the image's own index; every fifth one is a test image."""
    n = 60
    images = np.zeros((n, 3, 4, 4), np.uint8) + np.arange(n, dtype=np.uint8)[:, None, None, None]
    labels, domains = np.arange(n) % 3, np.repeat([0, 1], n // 2)
    split = (np.arange(n) % 5 == 4).astype(np.uint8)
    if not test_of_second:
        split[domains == 1] = 0
    return Pool("marked", images, labels, ("a", "b", "c"), split, labels, domains, ("near", "far"))


def marks(images: torch.Tensor) -> set[int]:
    return set(images[:, 0, 0, 0].tolist())


def test_clients_are_trained_on_the_training_part_and_tested_on_the_test_part_by_domain():
    fed = make_federation(pool(), 3, BY_DOMAIN, None, 0, test_share=0.0)
    assert [len(client.train) for client in fed.clients].count(9) == 3
    assert sorted(client.domain for client in fed.clients) == [0, 1, 1]
    for client in fed.clients:
        held = marks(client.train.images)
        assert all(mark % 5 != 4 and mark // 30 == client.domain for mark in held)
        assert not len(client.test) and not len(client.validation)
    assert list(fed.central) == ["near", "far"]
    assert [marks(samples.images) for samples in fed.central.values()] == [
        {mark for mark in range(q * 30, q * 30 + 30) if mark % 5 == 4} for q in (0, 1)
    ]
    assert sum(fed.sizes) == 27


def test_with_a_test_share_there_is_no_central_test():
    fed = make_federation(pool(), 3, BY_DOMAIN, None, 0, test_share=0.25)
    assert not fed.central
    assert all(len(client.test) for client in fed.clients)


def test_a_mixed_client_has_no_domain():
    fed = make_federation(pool(), 2, {"name": "iid"}, None, 0, test_share=0.0)
    assert [client.domain for client in fed.clients] == [-1, -1]


def test_a_domain_without_test_images_is_refused():
    with pytest.raises(
        FedlibError, match="test_share: 0 asks for the official test part of 'marked', but far has none"
    ):
        make_federation(pool(test_of_second=False), 3, BY_DOMAIN, None, 0, test_share=0.0)


def texts() -> Pool:
    """40 texts of three words; text i is the row (i, i, 0)."""
    tokens = np.arange(40, dtype=np.int32)[:, None] * np.array([1, 1, 0], np.int32)
    labels = np.arange(40) % 2
    split = (np.arange(40) % 4 == 3).astype(np.uint8)
    return Pool("marked texts", tokens, labels, ("a", "b"), split, labels, words=tuple(map(str, range(40))))


def test_texts_are_divided_as_they_are():
    fed = make_federation(texts(), 3, {"name": "iid"}, None, 0, test_share=0.25, validation_share=0.2)
    assert fed.shape == (40, 3)
    parts = [part for client in fed.clients for part in (client.train, client.validation, client.test)]
    tokens, labels = (torch.cat([getattr(part, what) for part in parts]) for what in ("images", "labels"))
    assert tokens.dtype == torch.int32
    assert sorted(tokens.tolist()) == [[i, i, 0] for i in range(40)]
    assert torch.equal(tokens[:, 0] % 2, labels)
    asked, origin = fed.pooled_test()
    assert asked.images.shape == (len(origin), 3)
    official = make_federation(texts(), 3, {"name": "iid"}, None, 0, test_share=0.0)
    assert official.central["marked texts"].images[:, 0].tolist() == list(range(3, 40, 4))


def test_texts_have_no_appearance():
    shift = {"name": "bit_grid"}
    with pytest.raises(FedlibError, match=r"shift: .*bit_grid.* changes how images look, but 'marked texts' is text"):
        make_federation(texts(), 3, {"name": "iid"}, shift, 0)


def test_images_keep_their_shape_and_layout():
    fed = make_federation(pool(), 3, {"name": "iid"}, {"name": "bit_grid"}, 0)
    assert fed.shape == (3, 4, 4)
    assert fed.clients[0].train.images.is_contiguous(memory_format=torch.channels_last)
