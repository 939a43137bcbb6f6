"""F²DC against the spec's unit tests (1.10), its DaA table (1.5), its parameter counts (2.2, 2.3) and identities."""

from __future__ import annotations

import dataclasses

import pytest
import tiny
import torch
import torch.nn.functional as F

from fedlib.checks import FedlibError
from fedlib.data.federation import Federation, Samples
from fedlib.engines import Serial
from fedlib.methods.f2dc import (
    F2DC,
    MODULES,
    CalibratedNetwork,
    Calibration,
    DomainAware,
    attribution,
    concrete_mask,
    domain_aware,
    likeliest_wrong,
)
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fpl import FPL
from fedlib.methods.method import Server, State, Task, Upload, Work, initial_state
from fedlib.rounds import Plan, federate
from fedlib.streams import torch_stream
from fedlib.training import Batch, Local, NotFinite, prepare

SHAPE, CLASSES = (3, 16, 16), 5
MODEL = {"name": "resnet10", "width": 4}
LOCAL = Local(steps=2, batch_size=8, crop=False)

CLIENTS = {
    "pacs": (7, {"photo": (400, 2), "art": (492, 3), "cartoon": (562, 2), "sketch": (943, 3)}),
    "office": (10, {"caltech": (179, 3), "amazon": (153, 2), "webcam": (47, 2), "dslr": (25, 3)}),
    "digits": (10, {"mnist": (600, 3), "usps": (72, 6), "svhn": (732, 6), "syn": (100, 5)}),
}
"""(classes, {domain: (n_k, clients)}): spec, 3.1."""

TABLE = {
    ("pacs", "photo"): (0.0979, 0.0969, 0.0983, 0.0980),
    ("pacs", "art"): (0.0988, 0.0982, 0.0990, 0.0988),
    ("pacs", "cartoon"): (0.0994, 0.0991, 0.0995, 0.0995),
    ("pacs", "sketch"): (0.1030, 0.1045, 0.1024, 0.1028),
    ("office", "caltech"): (0.1044, 0.1074, 0.1036, 0.1042),
    ("office", "amazon"): (0.1029, 0.1049, 0.1024, 0.1029),
    ("office", "webcam"): (0.0969, 0.0948, 0.0975, 0.0971),
    ("office", "dslr"): (0.0957, 0.0928, 0.0964, 0.0958),
    ("digits", "mnist"): (0.0510, 0.0517, 0.0508, 0.0510),
    ("digits", "usps"): (0.0488, 0.0480, 0.0490, 0.0488),
    ("digits", "svhn"): (0.0516, 0.0527, 0.0513, 0.0515),
    ("digits", "syn"): (0.0489, 0.0482, 0.0491, 0.0490),
}
"""p_k in the readings A, B, C, D: spec, 1.5."""


def task(sizes: tuple[int, ...] = (24, 16), domains: tuple[int, ...] = (0, 1)) -> Task:
    return Task(MODEL, SHAPE, CLASSES, sizes, 2, 0, domains)


def built(method: Calibration | None = None) -> CalibratedNetwork:
    model = initial_state(method or F2DC(), task())[0]
    assert isinstance(model, CalibratedNetwork)
    return model


def images(count: int = 6) -> torch.Tensor:
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(1))


def work(model: torch.nn.Module) -> Work:
    fed = tiny.federation((24,), side=16, classes=CLASSES)
    message = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    given = Work(0, fed.clients[0].train, message, {}, model, LOCAL, 0.01, 1, 2, torch_stream(0, "test"))
    if isinstance(model, CalibratedNetwork):
        F2DC().start(given)
    return given


def batch(count: int = 6) -> Batch:
    return Batch(images(count), torch.arange(count) % CLASSES, 0)


def test_the_parts_add_up_and_the_residual_identity_holds():
    model = built()
    parts = model.calibrate(model.backbone(images()), torch_stream(0, "mask"))
    f, M = parts.f, parts.mask
    torch.testing.assert_close(parts.robust + parts.related, f)
    torch.testing.assert_close(parts.calibrated - f, (1 - M) * model.corrector((1 - M) * f), atol=1e-5, rtol=1e-4)
    assert (f >= 0).all() and (f > 0).any()
    assert 0.2 < M.mean() < 0.8


def test_a_corrector_that_ends_in_zero_changes_nothing():
    model = built().eval()
    torch.nn.init.zeros_(model.corrector[-1].weight)
    plain = model.head(model.transform(model.backbone(images())))
    torch.testing.assert_close(model(images()), plain)


def test_without_noise_a_zero_attribution_is_a_mask_of_one_half():
    assert (concrete_mask(torch.zeros(3, 4), 0.1, None) == 0.5).all()


@pytest.mark.parametrize(("S", "noisy", "still"), [(-1, 0.271, 0.0), (0.1, 0.525, 0.731), (0.5, 0.622, 0.993)])
def test_the_mask_s_mean_is_that_of_the_spec(S: float, noisy: float, still: float):
    """Spec, 1.7: E[M] is near sigmoid(S) with noise, and sigmoid(10 S) without."""
    draws = concrete_mask(torch.full((100_000,), float(S)), 0.1, torch_stream(0, "draws"))
    assert float(draws.mean()) == pytest.approx(noisy, abs=0.005)
    assert float(draws.mean()) == pytest.approx(float(torch.sigmoid(torch.tensor(float(S)))), abs=0.01)
    assert float(concrete_mask(torch.tensor(float(S)), 0.1, None)) == pytest.approx(still, abs=6e-4)


def test_the_stable_form_is_the_two_gumbels_quotient():
    """M as Eqs 3 and 4 write it, with the same uniform draw as the difference of two Gumbels."""
    S = torch.randn(1000, generator=torch.Generator().manual_seed(2)).double()
    u = torch.rand(S.shape, generator=torch_stream(0, "u")).clamp(1e-7, 1 - 1e-7).double()
    g_a, g_b = torch.zeros(1000), torch.zeros(1000) - torch.logit(u)
    a = ((F.logsigmoid(S) + g_a) / 0.1).double()
    b = ((F.logsigmoid(-S) + g_b) / 0.1).double()
    written = torch.softmax(torch.stack([a, b]), 0)[0]
    torch.testing.assert_close(concrete_mask(S, 0.1, torch_stream(0, "u")), written, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize(("y", "wrong"), [(0, 1), (1, 0), (2, 0)])
def test_the_likeliest_wrong_label(y: int, wrong: int):
    logits = torch.tensor([[3.0, 2.0, 1.0]], requires_grad=True)
    assert likeliest_wrong(logits, torch.tensor([y])).tolist() == [wrong]
    assert likeliest_wrong(torch.zeros(1, 3), torch.tensor([0])).tolist() == [1]


def test_training_that_diverges_is_told_so():
    diverging = dataclasses.replace(work(built()), lr=1.0e30)
    with pytest.raises(NotFinite, match="lower lr"):
        F2DC().descend(diverging)


@pytest.mark.parametrize(
    "settings", [{}, {"lam1": 0.3, "lam2": 0.5, "tau": 0.2, "sigma": 0.7}, {"lam1": 0.0, "lam2": 0.0}]
)
def test_the_losses_and_their_gradients_are_the_equations(settings: dict[str, float]):
    """Written out anew; the gradients tell whether something is detached that the paper does not detach."""
    lam1, lam2, tau, sigma = ({"lam1": 0.8, "lam2": 1.0, "tau": 0.06, "sigma": 0.1} | settings).values()
    method = F2DC(**settings)
    model = built(method)
    terms = method.loss(model, batch(), work(model))
    parameters = dict(model.named_parameters())
    gradients = torch.autograd.grad(terms["total"], list(parameters.values()))
    f = model.backbone(batch().x)
    u = torch.rand(f.shape, generator=torch_stream(torch_stream(0, "test").initial_seed(), "mask"))
    M = torch.sigmoid((model.decoupler(f) + torch.log(u) - torch.log1p(-u)) / sigma)
    related = (1 - M) * f
    corrected = related + (1 - M) * model.corrector(related)
    plus, minus, star, calibrated = (z.mean((2, 3)) for z in (M * f, related, corrected, M * f + corrected))
    y, m = batch().y, model.auxiliary
    s = ((plus * minus).sum(1) / plus.norm(dim=1) / minus.norm(dim=1)).mean()
    wrong = likeliest_wrong(model.head(calibrated), y)
    dfd = s / tau + F.cross_entropy(m(plus), y) + F.cross_entropy(m(minus), wrong)
    expected = F.cross_entropy(model.head(calibrated), y) + lam1 * dfd + lam2 * F.cross_entropy(m(star), y)
    torch.testing.assert_close(terms["total"], expected)
    torch.testing.assert_close(terms["cosine"], s)
    by_hand = torch.autograd.grad(expected, list(parameters.values()))
    for name, ours, theirs in zip(parameters, gradients, by_hand, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-3, msg=name)


def test_noise_leaves_the_mini_batches_as_every_other_method_meets_them():
    """Under one seed FedAvg and F²DC train on the same images, shuffled, cropped and flipped alike."""

    def met(method: FedAvg | F2DC) -> list[torch.Tensor]:
        fed = tiny.federation((24,), side=16, classes=CLASSES)
        model, server, _ = initial_state(method, task((24,), (0,)))
        local = Local(steps=5, batch_size=8, crop=False, padding=2, flip=True)
        stream = torch_stream(0, "client", 1, 0)
        given = Work(0, fed.clients[0].train, server.weights, {}, model, local, 0.01, 1, 2, stream)
        seen: list[torch.Tensor] = []
        model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone()))
        method.client_update(given)
        return seen

    plain, noisy = met(FedAvg()), met(F2DC())
    assert len(plain) == len(noisy) == 5
    assert all(torch.equal(x, z) for x, z in zip(plain, noisy, strict=True))
    assert not torch.equal(plain[0], plain[3])


@pytest.mark.parametrize(
    "weights", [{"lam1": 0.0, "lam2": 0.0}, {"lam1": 1.0, "lam2": 0.0}, {"lam1": 0.0, "lam2": 1.0}]
)
def test_every_loss_reaches_the_trunk(weights: dict[str, float]):
    model, method = built(), F2DC()
    terms = method.loss(model, batch(), work(model))
    loss = {(0.0, 0.0): terms["target"], (1.0, 0.0): terms["decoupling"], (0.0, 1.0): terms["correction"]}
    loss[weights["lam1"], weights["lam2"]].backward()
    assert model.backbone.stem.conv.weight.grad.abs().sum() > 0


def test_no_weight_on_any_loss_and_no_mask_trains_an_adapter():
    """mask none: f~ = f + A_C(f), and the decoupler has no gradient."""
    method = F2DC(lam1=0.0, lam2=0.0, mask="none")
    model = built(method)
    method.loss(model, batch(), work(model))["total"].backward()
    assert model.decoupler[0].weight.grad is None
    f = model.backbone(images())
    torch.testing.assert_close(model.calibrate(f).calibrated, f + model.corrector(f))


def test_the_random_mask_ignores_the_decoupler():
    model = built(F2DC(mask="random")).eval()
    before = model(images())
    torch.nn.init.ones_(model.decoupler[-1].weight)
    torch.testing.assert_close(model(images()), before)


def test_a_network_is_deterministic_outside_of_drawing():
    model = built().eval()
    model.noise = torch_stream(0, "a")
    with model.drawing() as drawn:
        noisy = model(images())
    assert len(drawn) == 1
    assert torch.equal(model(images()), model(images()))
    assert not torch.equal(model(images()), noisy)


def test_a_mask_is_not_drawn_before_the_work_has_begun():
    model = built()
    with pytest.raises(FedlibError, match="no stream for the masks' noise"), model.drawing():
        model(images())


@pytest.mark.parametrize(("layers", "count"), [(2, 589_952), (3, 483_500)])
def test_the_modules_have_the_published_sizes(layers: int, count: int):
    assert sum(p.numel() for p in attribution(512, layers).parameters()) == count


def test_the_whole_network_has_the_published_size():
    task = Task({"name": "resnet10"}, (3, 32, 32), 7, (10,), 1, 0, (0,))
    model = F2DC().build(task)
    assert sum(p.numel() for p in model.parameters()) == 4_901_703 + 2 * 589_952 + 3_591


@pytest.mark.parametrize("name", CLIENTS)
def test_domain_aware_weights_are_the_table_s(name: str):
    classes, domains = CLIENTS[name]
    N = sum(n * clients for n, clients in domains.values())
    readings = [("classes", 0.4), ("sizes", 0.4), ("classes", 0.0), ("domains", 0.4)]
    for column, (reading, beta) in enumerate(readings):
        p = {
            domain: domain_aware(torch.full((classes,), n / classes), N, len(domains), 1.0, beta, reading)
            for domain, (n, _) in domains.items()
        }
        total = sum(p[domain] * clients for domain, (_, clients) in domains.items())
        for domain in domains:
            assert p[domain] / total == pytest.approx(TABLE[name, domain][column], abs=5.5e-5), (domain, reading)


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.4), (2.0, 0.7)])
@pytest.mark.parametrize("reading", ["classes", "sizes", "domains"])
def test_the_server_weighs_by_the_formula(alpha: float, beta: float, reading: str):
    server = Server({"w": torch.zeros(1)}, 0, {"N": torch.tensor(40.0), "Q": torch.tensor(2.0)})
    counts = [torch.tensor([8, 8]), torch.tensor([20, 4])]
    uploads = [
        Upload(i, {"w": torch.ones(1) * i}, {}, int(c.sum()), {}, {"class_counts": c}) for i, c in enumerate(counts)
    ]
    d = {
        "classes": [(0.5 * sum((c / 40 - 0.5) ** 2 for c in own)) ** 0.5 for own in ((8, 8), (20, 4))],
        "sizes": [0.1, 0.1],
        "domains": [(0.5 * (0.1**2 + 0.25)) ** 0.5] * 2,
    }[reading]
    p = [torch.sigmoid(torch.tensor(alpha * n / 40 - beta * dk)) for n, dk in zip((16, 24), d, strict=True)]
    expected = float(p[1] / (p[0] + p[1]))
    for order in (uploads, uploads[::-1]):
        after = F2DC(alpha=alpha, beta=beta, reading=reading).aggregate(server, order)
        assert float(after.weights["w"]) == pytest.approx(expected, abs=1e-6)
    assert float(Calibration().aggregate(server, uploads).weights["w"]) == pytest.approx(0.6)


def test_what_travels_in_each_mode():
    shared = initial_state(F2DC(), task())[1].weights
    local = initial_state(F2DC(modules="local"), task())[1].weights
    assert {name for name in shared if name not in local} == {name for name in shared if name.startswith(MODULES)}
    plain = initial_state(FedAvg(), task())[1].weights
    assert set(local) == set(plain)


def domains(method: F2DC | FedAvg, local: Local = LOCAL, rounds: int = 2):
    fed = tiny.federation((24, 16, 20), side=16, classes=CLASSES)
    clients = tuple(dataclasses.replace(c, domain=q) for c, q in zip(fed.clients, (0, 1, 1), strict=True))
    fed = dataclasses.replace(fed, clients=clients, central={"a": fed.clients[0].test, "b": fed.clients[1].test})
    described = Task(MODEL, SHAPE, CLASSES, fed.sizes, rounds, 0, (0, 1, 1))
    return federate(method, fed, described, local, Plan(rounds, 0.01), Serial()), fed


def test_the_upload_s_class_counts_are_the_client_s_own_and_are_counted_as_bytes():
    now, fed = domains(F2DC(), rounds=1)
    rows = {row.metric: row.value for row in now.history}
    assert rows["bytes_up"] - rows["bytes_down"] == 3 * CLASSES * 8
    assert float(now.server.memory["N"]) == sum(fed.sizes)
    assert float(now.server.memory["Q"]) == 2


def test_domain_aware_weights_serve_methods_with_an_aggregation_of_their_own():
    @dataclasses.dataclass(frozen=True)
    class Both(DomainAware, FPL):
        pass

    counts = [torch.tensor([30, 10]), torch.tensor([5, 5])]
    means = {"means": torch.ones(1, 3), "classes": torch.tensor([1])}
    server = Server({"head.bias": torch.zeros(2)}, 0, {"N": torch.tensor(50.0), "Q": torch.tensor(2.0)})
    sent = [
        Upload(i, {"head.bias": torch.full((2,), float(i))}, {}, int(n.sum()), {}, {"class_counts": n} | means)
        for i, n in enumerate(counts)
    ]
    p = [domain_aware(n, 50.0, 2.0, 1.0, 0.4) for n in counts]
    after = Both().aggregate(server, sent)
    assert after.weights["head.bias"].tolist() == pytest.approx([p[1] / sum(p)] * 2)
    assert "prototypes/unbiased" in after.memory


def test_domain_aware_aggregation_without_calibration_trains_fedavg_s_network():
    """With clients of equal class counts DaA's weights are equal: DomainAware is FedAvg. With others it is not."""
    fed = tiny.federation((16, 16), side=16, classes=CLASSES)
    fed = dataclasses.replace(fed, clients=tuple(dataclasses.replace(c, domain=c.index) for c in fed.clients))
    first, second = fed.clients
    same = dataclasses.replace(second.train, labels=first.train.labels.clone())
    alike = dataclasses.replace(fed, clients=(first, dataclasses.replace(second, train=same)))
    fewer = Samples(first.train.images[:4], first.train.labels[:4])
    unlike = dataclasses.replace(fed, clients=(dataclasses.replace(first, train=fewer), second))

    def weights(method: FedAvg | DomainAware, federation: Federation) -> State:
        described = Task(MODEL, SHAPE, CLASSES, federation.sizes, 2, 0, (0, 1))
        return federate(method, federation, described, LOCAL, Plan(2, 0.1), Serial()).server.weights

    _, start, _ = initial_state(FedAvg(), Task(MODEL, SHAPE, CLASSES, fed.sizes, 2, 0, (0, 1)))
    plain, aware = weights(FedAvg(), alike), weights(DomainAware(), alike)
    assert plain.keys() == aware.keys()
    for name in plain:
        torch.testing.assert_close(plain[name], aware[name], rtol=1e-5, atol=1e-6, msg=name)
    assert (plain["head.weight"] - start.weights["head.weight"]).abs().max() > 1e-3
    other, unequal = (weights(method, unlike)["head.weight"] for method in (FedAvg(), DomainAware()))
    assert (other - unequal).abs().max() > 1e-3


def test_average_and_spread_are_those_of_the_domains():
    now, _ = domains(F2DC(), rounds=1)
    rows = {row.metric: row.value for row in now.history}
    a, b = rows["domain@central[a]"], rows["domain@central[b]"]
    assert rows["domain@central"] == pytest.approx((a + b) / 2)
    assert rows["domain_std@central"] == pytest.approx(abs(a - b) / 2**0.5, abs=1e-6)
    assert rows["worst@central"] == pytest.approx(min(a, b))


def test_local_modules_are_tested_by_the_mean_over_a_domain_s_clients():
    from fedlib.metrics import Crowd

    method = F2DC(modules="local")
    now, fed = domains(method)
    model = initial_state(method, Task(MODEL, SHAPE, CLASSES, fed.sizes, 2, 0, (0, 1, 1)))[0]
    crowd = Crowd(method, model, now.server, now.memories, fed)
    mean = (now.memories[1]["auxiliary.weight"] + now.memories[2]["auxiliary.weight"]) / 2
    torch.testing.assert_close(crowd.domain_states[1]["auxiliary.weight"], mean)
    torch.testing.assert_close(crowd.domain_states[0]["auxiliary.weight"], now.memories[0]["auxiliary.weight"])
    assert torch.equal(crowd.domain_states[1]["head.weight"], now.server.weights["head.weight"])


def test_accuracy_by_domain_is_that_of_a_plain_pass():
    from fedlib.metrics import Crowd

    method = F2DC()
    now, fed = domains(method)
    model = initial_state(method, Task(MODEL, SHAPE, CLASSES, fed.sizes, 2, 0, (0, 1, 1)))[0]
    model.load_state_dict(now.server.weights)
    model.eval()
    for q, samples in enumerate(fed.central.values()):
        with torch.no_grad():
            right = (model(prepare(samples.images)).argmax(-1) == samples.labels).float().mean()
        crowd = Crowd(method, model, now.server, now.memories, fed)
        assert float(crowd.domain_accuracies()[q]) == pytest.approx(float(right))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mask": "noisy"}, "F2DC.mask: 'noisy' is unknown"),
        ({"modules": "locl"}, "did you mean 'local'"),
        ({"reading": "D"}, "F2DC.reading: 'D' is unknown"),
        ({"sigma": 0.0}, "F2DC.sigma: 0.0 is out of range; give a number above 0.0"),
        ({"layers": 4}, "F2DC.layers: 4 is out of range"),
    ],
)
def test_a_wrong_setting_is_refused(settings, message: str):
    with pytest.raises(FedlibError, match=message):
        F2DC(**settings)


def test_what_daa_or_the_mask_cannot_do_is_refused():
    with pytest.raises(FedlibError, match=r"mask 'none' with lam1 0\.8 has nothing to decouple .* give lam1: 0"):
        Calibration(mask="none")
    mixed = tiny.federation((24, 16), side=16, classes=CLASSES)
    with pytest.raises(FedlibError, match=r"DomainAware: client 0 holds no one domain.*take a partition by_domain"):
        DomainAware().check_clients(mixed)
    Calibration().check_clients(mixed)


def test_domain_aware_weights_are_refused_where_no_domain_is_named():
    with pytest.raises(FedlibError, match="DomainAware: the task names no client's domain"):
        DomainAware().remember(dataclasses.replace(task(), domains=()))


def test_a_network_without_a_map_at_its_end_is_refused():
    with pytest.raises(FedlibError, match="model small_cnn has none; take resnet10"):
        F2DC().build(dataclasses.replace(task(), model={"name": "small_cnn"}))
