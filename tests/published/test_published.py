import pytest

from fedlib.checks import FedlibError
from fedlib.published import COLUMNS, load, value

# FedDRM spec, 5.1 to 5.4: every number that is known
KNOWN = {
    ("main", "cifar10/dirichlet-0.3", "FedDRM", "system"): 62.78,
    ("main", "cifar10/dirichlet-0.3", "FedALA", "system"): 61.33,
    ("main", "cifar10/5-spc", "FedDRM", "system"): 58.50,
    ("main", "cifar10/5-spc", "FedBABU", "system"): 57.17,
    ("main", "cifar100/25-spc", "FedDRM", "system"): 31.24,
    ("main", "cifar100/25-spc", "FedAvgFT", "system"): 27.96,
    ("main", "cifar10/dirichlet-0.3", "FedDRM", "average"): 80.26,
    ("main", "cifar10/dirichlet-0.3", "FedAvgFT", "average"): 79.08,
    ("main", "cifar100/25-spc", "FedDRM", "average"): 46.73,
    ("main", "cifar100/25-spc", "FedAS", "average"): 44.26,
    ("intensity", "cifar10/dirichlet-0.3/low", "FedDRM", "system"): 46.90,
    ("intensity", "cifar10/dirichlet-0.3/low", "FedDRM", "average"): 81.78,
    ("intensity", "cifar10/dirichlet-0.3/mid", "FedDRM", "system"): 54.61,
    ("intensity", "cifar10/dirichlet-0.3/high", "FedDRM", "system"): 63.80,
    ("intensity", "cifar10/dirichlet-0.3/high", "FedDRM", "average"): 80.25,
    ("clients", "cifar10/dirichlet-0.3/m-8", "FedDRM", "system"): 59.59,
    ("clients", "cifar10/dirichlet-0.3/m-32", "FedDRM", "system"): 46.62,
    ("retina", "retina", "FedDRM", "average_lead_low"): 0.83,
    ("retina", "retina", "FedDRM", "average_lead_high"): 3.77,
    ("retina", "retina", "FedDRM", "system_lead_low"): 1.41,
    ("retina", "retina", "FedDRM", "system_lead_high"): 7.67,
    ("lambda", "cifar10/dirichlet-0.3", "FedDRM", "best_lambda"): 0.8,
}


def test_feddrm_holds_the_known_numbers_and_nothing_else():
    cells = load("feddrm").set_index(list(COLUMNS))
    assert cells.index.is_unique
    assert cells["value"].dropna().to_dict() == KNOWN
    assert cells["std"].isna().all() and cells["source"].str.contains("RZT1ixYGk1").all()


def test_feddrm_has_every_cell_of_the_published_tables():
    sizes = load("feddrm").groupby("table").size().to_dict()
    # 11 methods x 6 settings x 2 metrics; 3 levels x 2; m = 8, 16, 24, 32; 11 x 2 and two ranges; the best λ
    assert sizes == {"main": 132, "intensity": 6, "clients": 4, "retina": 26, "lambda": 1}


def test_feddrm_leads_by_the_published_gaps():
    gaps = [("cifar10/dirichlet-0.3", "system", "FedALA", 1.45), ("cifar10/5-spc", "system", "FedBABU", 1.33)]
    gaps += [("cifar100/25-spc", "system", "FedAvgFT", 3.28), ("cifar100/25-spc", "average", "FedAS", 2.47)]
    for setting, metric, best, gap in [*gaps, ("cifar10/dirichlet-0.3", "average", "FedAvgFT", 1.18)]:
        lead = value("feddrm", "main", setting, "FedDRM", metric) - value("feddrm", "main", setting, best, metric)
        assert lead == pytest.approx(gap)


def test_unknown_numbers_are_none():
    assert value("feddrm", "main", "cifar20/s-spc", "Ditto", "system") is None
    assert value("feddrm", "main", "cifar10/5-spc", "FedDRM", "average") is None


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("fedrm", "main", "retina", "FedDRM", "system"), "paper: 'fedrm' is unknown; did you mean 'feddrm'"),
        (("feddrm", "mian", "retina", "FedDRM", "system"), "table: 'mian' is unknown; did you mean 'main'"),
        (("feddrm", "main", "cifar10/6-spc", "FedDRM", "system"), "setting: .* did you mean 'cifar10/5-spc'"),
        (("feddrm", "main", "cifar10/5-spc", "FedAvgFF", "system"), "method: .* did you mean 'FedAvgFT'"),
        (("feddrm", "main", "cifar10/5-spc", "FedDRM", "sytem"), "metric: .* did you mean 'system'"),
    ],
)
def test_a_wrong_name_suggests_the_nearest(names, message):
    with pytest.raises(FedlibError, match=message):
        value(*names)
