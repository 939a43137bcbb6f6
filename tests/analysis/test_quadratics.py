import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.special import logit

from fedlib.analysis import quadratics as q
from fedlib.checks import FedlibError
from fedlib.methods.fedfew import FedFew
from fedlib.methods.method import Server, Upload

D = 2.0
ENDS = np.array([[0.0, 0.0], [D, 0.0]])


def stream(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def drawn(seed: int = 0, **settings) -> q.Quadratics:
    return q.clusters(**{"m": 12, "d": 3, "G": 3, "separation": 4.0, "spread": 0.3} | settings, generator=stream(seed))


def place(point: np.ndarray) -> float:
    """The t of a point (t D, 0)."""
    assert point[1] == pytest.approx(0, abs=1e-9)
    return float(point[0]) / D


def test_losses_and_gradients_are_those_of_the_quadratic_form():
    A = np.array([[[2.0, 1.0], [1.0, 3.0]], [[1.0, 0.0], [0.0, 1.0]]])
    problem, thetas = q.given(ENDS, A), np.array([[1.0, 2.0]])
    # client 0: (2 + 2·2 + 3·4) / 2; client 1: (1 + 4) / 2
    assert problem.losses(thetas).tolist() == [[9.0], [2.5]]
    assert problem.gradients(thetas).tolist() == [[[4.0, 7.0]], [[-1.0, 2.0]]]


@pytest.mark.parametrize("t", [0.3, 0.4, 0.49])
def test_one_model_settles_at_the_smoothed_minimax_point(t):
    """Three clients at t = 0, one at t = 1. Stationary: logit(t) + D^2 (2 t - 1) / (2 smoothing) = log(1 / 3)."""
    smoothing = D**2 * (2 * t - 1) / (2 * (np.log(1 / 3) - logit(t)))
    problem = q.given(ENDS[[0, 0, 0, 1]])
    run = q.descend(problem, np.array([[5.0, 1.0]]), smoothing, lr=0.05, steps=600)
    assert place(run.thetas[-1, 0]) == pytest.approx(t, abs=1e-8)
    assert place(q.smoothed_minimax(problem, smoothing)) == pytest.approx(t, abs=1e-6)


def test_smoothing_moves_it_from_the_centre_of_the_smallest_ball_to_the_mean():
    problem = q.given(ENDS[[0, 0, 0, 1]])
    assert place(q.centre(problem)) == pytest.approx(1 / 4)
    assert place(q.smoothed_minimax(problem, 1e5)) == pytest.approx(1 / 4, abs=1e-4)
    # to first order in smoothing: 2 t - 1 = 2 smoothing log(1 / 3) / D^2
    assert 2 * place(q.smoothed_minimax(problem, 0.02)) - 1 == pytest.approx(0.04 * np.log(1 / 3) / D**2, rel=0.02)
    assert q.towards(np.array([D / 2, 0.7]), q.centre(problem), ENDS[1]) == pytest.approx(1 / 3)


def test_with_curvature_the_steep_client_is_nearer():
    """c_1 t exp(c_1 t^2 D^2 / 2 s) = c_2 (1 - t) exp(c_2 (1 - t)^2 D^2 / 2 s), and the mean loss' own point."""
    c, s = (4.0, 1.0), 0.5
    problem = q.given(ENDS, np.stack([np.diag([each, 1.0]) for each in c]))

    def stationary(t: float) -> float:
        return np.log(c[0] * t / (c[1] * (1 - t))) + D**2 / (2 * s) * (c[0] * t**2 - c[1] * (1 - t) ** 2)

    t = brentq(stationary, 1e-6, 1 - 1e-6)
    assert 1 / 5 < t < 1 / 2
    run = q.descend(problem, np.array([[1.5, 0.3]]), s, lr=0.03, steps=900)
    assert place(run.thetas[-1, 0]) == pytest.approx(t, abs=1e-8)
    assert place(q.smoothed_minimax(problem, s)) == pytest.approx(t, abs=1e-6)
    assert place(q.centre(problem)) == pytest.approx(1 / 5)


def test_two_models_part_when_smoothing_is_below_a_quarter_of_the_squared_distance():
    """theta_1 = t, theta_2 = 1 - t with logit(t) = -D^2 (1 - 2 t) / (2 smoothing); t = 1/2 alone above D^2 / 4."""
    problem, begin = q.given(ENDS), np.array([[0.8, 0.1], [1.2, -0.1]])
    smoothing = -(D**2) * 0.8 / (2 * logit(0.1))
    run = q.descend(problem, begin, smoothing, lr=0.5, steps=300, update="normalised")
    assert [place(theta) for theta in run.thetas[-1]] == pytest.approx([0.1, 0.9], abs=1e-8)
    assert run.chosen().tolist() == [0, 1]
    merged = q.descend(problem, begin, 1.2 * D**2 / 4, lr=0.5, steps=300, update="normalised")
    assert [place(theta) for theta in merged.thetas[-1]] == pytest.approx([0.5, 0.5], abs=1e-6)


@pytest.mark.parametrize("update", ["plain", "normalised"])
@pytest.mark.parametrize("loss_scale", ["raw", "share", "m_share"])
def test_a_step_is_a_round_of_fedfew(update, loss_scale):
    problem, lr = drawn(size_ratio=5.0), 0.3
    thetas = q.start(3, 3, stream(1), 2.0)
    method = FedFew(K=3, smoothing=0.7, step=update, loss_scale=loss_scale)
    sent, L = thetas - lr * problem.gradients(thetas), torch.from_numpy(problem.losses(thetas))
    uploads = [
        Upload(i, named(sent[i]), {}, float(n), {}, {"losses": L[i]}) for i, n in enumerate(problem.sizes.tolist())
    ]
    unknown = {"losses": torch.zeros(12, 3), "outer": torch.zeros(12), "inner": torch.zeros(12, 3)}
    memory = {name: tensor.double() for name, tensor in unknown.items()}
    after = method.aggregate(Server(named(thetas), 0, memory), uploads)
    run = q.descend(problem, thetas, 0.7, lr, steps=1, update=update, loss_scale=loss_scale)
    for k in range(3):
        np.testing.assert_allclose(run.thetas[1, k], after.weights[f"{k}/w"], atol=1e-12)
    assert run.g[0] == pytest.approx(float(after.memory["objective"]))
    np.testing.assert_allclose(run.outer[0], after.memory["outer"], atol=1e-12)
    np.testing.assert_allclose(run.losses[0], after.memory["losses"], atol=1e-12)


def named(thetas: np.ndarray) -> dict[str, torch.Tensor]:
    return {f"{k}/w": torch.from_numpy(theta.copy()) for k, theta in enumerate(thetas)}


@pytest.mark.parametrize("K", [3, 5, 8])
def test_equal_starts_never_part_and_go_a_kth_as_fast(K):
    problem, begin = drawn(), q.start(K, 3, stream(2), 1.0, init="same")
    run = q.descend(problem, begin, 0.5, 0.1, steps=400)
    assert (run.thetas == run.thetas[:, :1]).all()
    np.testing.assert_allclose(run.objective()["certainty"], 1 / K, atol=1e-12)
    one = q.descend(problem, begin[:1], 0.5, 0.1, steps=1)
    np.testing.assert_allclose(run.thetas[1, 0] - begin[0], (one.thetas[1, 0] - begin[0]) / K, atol=1e-12)
    whole = q.descend(problem, begin, 0.5, 0.1, steps=1, update="normalised")
    np.testing.assert_allclose(whole.thetas[1, K - 1], one.thetas[1, 0], atol=1e-12)


@pytest.mark.parametrize("update", ["plain", "normalised"])
def test_a_dead_model_stays_where_it_is(update):
    begin = np.array([[0.5, 0.0], [1e3, 0.0]])
    run = q.descend(q.given(ENDS), begin, 0.5, 0.1, steps=20, update=update)
    assert (run.thetas[:, 1] == begin[1]).all() and (run.thetas[-1, 0] != begin[0]).any()
    assert run.c[-1].tolist() == pytest.approx([1, 0], abs=1e-12)


def test_the_objective_falls_and_lies_in_its_sandwich():
    problem, smoothing, K = drawn(3), 0.4, 4
    table = q.descend(problem, q.start(K, 3, stream(3), 1.0), smoothing, 0.05, steps=200).objective()
    assert (table["g"].diff().dropna() < 1e-12).all() and table["g"].iloc[-1] < table["g"].iloc[0] - 1
    assert (table["g"] >= table["worst"] - smoothing * np.log(K)).all()
    assert (table["g"] <= table["worst"] + smoothing * np.log(12)).all()


def test_tables_hold_each_step_client_and_model_once():
    problem = drawn(4)
    run = q.descend(problem, q.start(2, 3, stream(4), 1.0), 0.5, 0.1, steps=5)
    clients, models = run.clients(), run.models()
    assert len(clients) == 6 * 12 * 2 and len(models) == 6 * 2 and run.objective()["step"].tolist() == [*range(6)]
    at = clients.set_index(["step", "client", "model"]).loc[(3, 7, 1)]
    assert at.tolist() == [problem.losses(run.thetas[3])[7, 1], run.outer[3, 7], run.inner[3, 7, 1]]
    row = models.set_index(["step", "model"]).loc[(5, 1)]
    assert row.tolist() == [run.c[5, 1], *run.thetas[5, 1]]
    assert models.columns.tolist() == ["step", "model", "c", "theta_0", "theta_1", "theta_2"]
    best = run.losses[5].min(axis=1)
    assert run.objective().iloc[5][["worst", "regret"]].tolist() == [best.max(), pytest.approx(best.mean())]


def test_the_gradient_is_compared_with_differences():
    L = stream(5).uniform(0, 3, size=(4, 3))
    assert q.gradient_error(L, 0.5) < 1e-8
    assert q.gradient_error(L, 0.5, difference=1.0) > 1e-3  # a coarse difference is not the derivative


def test_the_bound_is_met_by_the_optima_of_equidistant_clients():
    """A simplex: all pairs sqrt(2) apart, so Delta_het = 1; K own optima leave (m - K) / m."""
    problem = q.given(np.eye(5))
    assert q.heterogeneity(problem) == pytest.approx(1)
    for K in (1, 3, 5):
        regret = problem.losses(np.eye(5)[:K]).min(axis=1).mean()
        assert q.regret_bound(problem, K) == pytest.approx(regret) == pytest.approx((5 - K) / 5)
    assert q.heterogeneity(q.given(ENDS, np.array([np.eye(2), 3 * np.eye(2)]))) == pytest.approx(3 * D**2 / 2)


def test_the_best_regret_is_that_of_k_means():
    line = q.given(np.array([[0.0], [1.0], [10.0], [11.0]]))
    assert q.best_regret(line, 2, seed=0) == pytest.approx(0.5**2 / 2)
    assert q.best_regret(line, 1, seed=0) == pytest.approx((2 * 5.5**2 + 2 * 4.5**2) / 8)
    assert q.best_regret(line, 4, seed=0) == pytest.approx(0)


def test_the_pareto_set_of_round_losses_is_the_hull_of_the_optima():
    corners = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    preference = q.preferences(3, 4)
    assert len(preference) == 15 and np.allclose(preference.sum(1), 1) and (preference >= 0).all()
    assert {tuple(row) for row in np.eye(3)} <= {tuple(row) for row in preference}
    np.testing.assert_allclose(q.pareto_set(q.given(corners), preference), preference @ corners, atol=1e-12)
    assert q.preferences(2, 4).tolist() == [[1, 0], [0.75, 0.25], [0.5, 0.5], [0.25, 0.75], [0, 1]]


def test_with_curvature_a_pareto_point_has_no_common_descent():
    A = np.array([[[2.0, 1.0], [1.0, 3.0]], [[1.0, 0.0], [0.0, 5.0]]])
    problem, preference = q.given(ENDS + np.array([[0, 0], [0, 1]]), A), q.preferences(2, 5)
    points = q.pareto_set(problem, preference)
    np.testing.assert_allclose(np.einsum("pi,ipd->pd", preference, problem.gradients(points)), 0, atol=1e-12)


def test_what_is_uncovered_has_a_closed_form_for_two_clients():
    problem = q.given(ENDS)
    front = q.pareto_set(problem, q.preferences(2, 1000))
    assert q.uncovered(problem, front, front) == pytest.approx(0, abs=1e-12)
    assert q.uncovered(problem, np.array([[D / 2, 0]]), front) == pytest.approx(D**2 / 8)
    assert q.uncovered(problem, ENDS, front) == pytest.approx(3 * D**2 / 8)
    # the middle lies delta = 1 / 8 from two models: each is worse by D^2 (delta + delta^2) / 2 for one client
    even = q.spread_out(front, 4, seed=0)
    assert sorted(even[:, 0] / D) == pytest.approx([1 / 8, 3 / 8, 5 / 8, 7 / 8], abs=2e-3)
    assert q.uncovered(problem, even, front) == pytest.approx(D**2 / 2 * (1 / 8 + 1 / 64), rel=0.01)


def test_clusters_are_apart_and_as_wide_as_asked():
    problem = q.clusters(3000, 3, 3, stream(6), separation=4.0, spread=0.5, size_ratio=30.0)
    centres = np.stack([problem.optima[problem.group == g].mean(axis=0) for g in range(3)])
    away = ((problem.optima - centres[problem.group]) ** 2).sum(axis=1)
    assert np.sqrt(away.mean()) == pytest.approx(0.5, rel=0.03)
    assert np.bincount(problem.group).tolist() == [1000] * 3
    assert 1 <= problem.sizes.min() < 1.1 and 27 < problem.sizes.max() <= 30
    assert np.median(problem.sizes) == pytest.approx(np.sqrt(30), rel=0.1)
    apart = [q.clusters(4, 2, 4, stream(seed), 4.0, 0.0).optima for seed in range(200)]
    gaps = np.stack([np.linalg.norm(at[:, None] - at, axis=2)[np.triu_indices(4, 1)] for at in apart])
    assert gaps.min() >= 2 and (drawn().sizes == 1).all()
    free = np.stack([q.clusters(2, 8, 2, stream(seed), 4.0, 0.0).optima for seed in range(400)])
    assert np.sqrt(((free[:, 0] - free[:, 1]) ** 2).sum(1).mean()) == pytest.approx(4.0, rel=0.05)


@pytest.mark.parametrize("m", [2, 3])
def test_regular_clients_are_as_far_from_each_other(m):
    optima = q.regular(m, 4.0).optima
    gaps = np.linalg.norm(optima[:, None] - optima, axis=2)
    np.testing.assert_allclose(gaps, 4 * (1 - np.eye(m)), atol=1e-12)
    np.testing.assert_allclose(optima.mean(axis=0), 0, atol=1e-12)


def test_starts_are_as_far_apart_as_their_name_says():
    spread = q.start(4000, 5, stream(7), 2.0)
    assert np.sqrt((spread**2).sum(axis=1).mean()) == pytest.approx(2.0, rel=0.03)
    noise = q.start(4000, 5, stream(7), 2.0, init="noise")
    assert (noise - noise.mean(axis=0)).std() == pytest.approx(0.01, rel=0.03)
    np.testing.assert_allclose(noise.mean(axis=0), spread[0], atol=1e-3)
    assert (q.start(3, 5, stream(7), 2.0, init="same") == spread[0]).all()


def test_steps_are_counted_from_the_start():
    g = np.array([10.0, 6.0, 2.0, 1.0, 0.0])
    assert [q.steps_to(g), q.steps_to(g, 0.4), q.steps_to(g, 1.0), q.steps_to(g - 7)] == [3, 1, 4, 3]
    assert [q.first_above(g, 5.9), q.first_above(-g, -3), q.first_above(g, 10)] == [0, 2, 5]


def test_outer_weights_follow_losses_or_sizes():
    """K = 1: a_i grows with what stands in the exponent, strictly. On a circle all losses at its centre are equal."""
    problem = drawn(8, size_ratio=30.0)
    run = q.descend(problem, q.start(1, 3, stream(8), 1.0), 1.0, 0.1, steps=5)
    assert q.rank_correlations(problem, run)[0] == pytest.approx(1)
    angles = np.arange(12) * np.pi / 6
    circle = q.Quadratics(np.column_stack([np.cos(angles), np.sin(angles)]), problem.group, problem.sizes)
    still = q.descend(circle, np.zeros((1, 2)), 0.1, 0.1, steps=0, loss_scale="share")
    assert q.rank_correlations(circle, still)[1] == pytest.approx(1)
    turned = q.Quadratics(circle.optima, circle.group, circle.sizes.max() + 1 - circle.sizes)
    assert q.rank_correlations(turned, still)[1] == pytest.approx(-1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: drawn(G=13), "clusters: G: 13 is out of range; give a whole number at least 1 and at most 12"),
        (lambda: drawn(d=1, G=12), "no room for G = 12 centres apart in d = 1 dimensions; lower G or raise d"),
        (lambda: drawn(size_ratio=0.5), "clusters: size_ratio: 0.5 is out of range"),
        (lambda: q.start(2, 3, stream(), 1.0, init="sane"), "start: init: 'sane' is unknown; did you mean 'same'"),
        (lambda: q.descend(drawn(), np.zeros((1, 3)), 0.0, 0.1, 1), "descend: smoothing: 0.0 is out of range"),
        (
            lambda: q.descend(drawn(), np.zeros((1, 3)), 1.0, 0.1, 1, update="normalized"),
            "update: .* did you mean 'normalised'",
        ),
        (
            lambda: q.descend(drawn(), np.ones((1, 3)), 1.0, 1e9, 99),
            r"g is \w+ at step \d+; lower lr, which is 1000000000",
        ),
        (lambda: q.regular(4, 1.0), "regular: m: 4 is unknown; valid: 2, 3"),
        (lambda: q.regret_bound(drawn(), 13), "regret_bound: K: 13 is out of range"),
        (lambda: q.best_regret(q.given(ENDS, np.stack([np.eye(2)] * 2)), 1, 0), "K-means is the answer for A_i = I"),
        (lambda: q.preferences(4, 3), "preferences: m: 4 is unknown; valid: 2, 3"),
        (
            lambda: q.rank_correlations(drawn(), q.descend(drawn(), np.zeros((1, 3)), 1.0, 0.1, 0)),
            "all clients have the same size; give clusters a size_ratio above 1",
        ),
    ],
)
def test_impossible_inputs_are_refused(call, message):
    with pytest.raises(FedlibError, match=message):
        call()
