"""TextCNN: the published count, its function against a plain calculation, the padding, the dropout."""

from __future__ import annotations

import pickle

import pytest
import torch
import torch.nn.functional as F

from fedlib import models
from fedlib.checks import FedlibError
from fedlib.models.network import Network
from fedlib.models.text import text_cnn


def small(dropout: float = 0.5) -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return text_cnn((12, 7), 3, width=4, filters=2, dropout=dropout)


TOKENS = torch.tensor([[1, 5, 9, 5, 0, 0, 0], [1, 2, 3, 4, 11, 6, 7], [1, 0, 0, 0, 0, 0, 0]])


def test_the_published_count():
    """FedFew spec, 2.2: 32,000 words, four classes."""
    network = text_cnn((32_000, 200), 4)
    assert sum(p.numel() for p in network.parameters()) == 16_999_904
    assert network.width == 300 and network.transform.p == 0.8


def test_a_feature_is_the_best_place_of_its_phrase():
    """max over places of ReLU(<filter, the words there> + bias), filter by filter; places in the padding count."""
    network = small()
    vectors, expected = network.backbone.embedding.weight[TOKENS], []
    for text in vectors:
        features = []
        for convolution in network.backbone.convolutions:
            size = convolution.kernel_size[0]
            for weight, bias in zip(convolution.weight, convolution.bias, strict=True):
                places = [(weight * text[t : t + size].T).sum() + bias for t in range(7 - size + 1)]
                features.append(max(max(place, torch.tensor(0.0)) for place in places))
        expected.append(torch.stack(features))
    torch.testing.assert_close(network.backbone(TOKENS), torch.stack(expected))
    assert [c.kernel_size[0] for c in network.backbone.convolutions] == [3, 4, 5]
    eval_logits = torch.stack(expected) @ network.head.weight.T + network.head.bias
    torch.testing.assert_close(network.eval()(TOKENS), eval_logits)
    assert torch.equal(network(TOKENS.int()), network(TOKENS))


def test_the_padding_is_zero_and_stays_so():
    network = small(dropout=0.0)
    embedding = network.backbone.embedding.weight
    start = embedding.detach().clone()
    assert (start[0] == 0).all()
    optimiser = torch.optim.SGD(network.parameters(), 0.5, 0.9, weight_decay=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        F.cross_entropy(network(TOKENS), torch.tensor([0, 1, 2])).backward()
        assert (embedding.grad[0] == 0).all() and (embedding.grad[1] != 0).any()
        optimiser.step()
    assert (embedding[0] == 0).all() and not torch.equal(embedding[5], start[5])


def test_dropout_stands_between_the_features_and_the_head_in_training_alone():
    network, ones = text_cnn((12, 7), 3, width=4, filters=2), torch.ones(4000, 6)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        kept = network.transform(ones)
    assert torch.allclose(kept[kept != 0], torch.tensor(5.0))
    assert float((kept != 0).float().mean()) == pytest.approx(0.2, abs=5 * (0.16 / 24_000) ** 0.5)
    assert torch.equal(network.eval().transform(ones), ones)


def test_it_can_be_sent_to_a_worker():
    network = small().eval()
    assert torch.equal(pickle.loads(pickle.dumps(network))(TOKENS), network(TOKENS))
    assert network.make_transform().p == 0.5


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((12, 4), {}, "model text_cnn: texts of 4 words are shorter than its filters of 5"),
        ((12, 7), {"width": 0}, "model text_cnn: width: 0 is out of range"),
        ((12, 7), {"filters": 2.5}, "model text_cnn: filters: 2.5 is float, not a whole number"),
        ((12, 7), {"dropout": 1}, "model text_cnn: dropout: 1 is out of range; give a number at least 0.0 and below"),
        ((12, 7), {"droput": 0.5}, "unknown key 'droput'; did you mean 'dropout'?"),
        ((3, 32, 32), {}, "model text_cnn: it reads texts, but the data set holds images; take cnn4 or"),
    ],
)
def test_a_wrong_option_or_sample_is_refused(shape: tuple[int, ...], options: dict, message: str):
    with pytest.raises(FedlibError) as caught:
        models.build({"name": "text_cnn", **options}, shape, 4)
    assert message in str(caught.value)
