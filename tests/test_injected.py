"""In a real papermill run at the end; before that with a shell that was told what papermill would have injected."""

import subprocess
import sys
from types import SimpleNamespace

import nbformat
import pytest

from fedlib import injected
from fedlib.checks import FedlibError

PARAMETERS = 'scale = "smoke"\nlams = [0.1, 0.8]\nrounds = 20\nlr = 0.01'


@pytest.fixture
def inject(project, monkeypatch):
    """Pretend that papermill ran notebook feddrm/sweep with these lines of parameters."""
    project.notebook("feddrm/sweep", parameters=PARAMETERS)

    def run(lines, first="# Parameters\n"):
        names = {"In": ["", "import fedlib", PARAMETERS, first + lines]}
        exec(PARAMETERS, names)
        exec(lines, names)
        monkeypatch.setattr(injected, "get_ipython", lambda: SimpleNamespace(user_ns=names))
        injected.check_injected("feddrm/sweep")

    return run


@pytest.mark.parametrize("lines", ["", "rounds = 3", 'scale = "laptop"\nlams = [0.5]\nrounds = 100\nlr = 1'])
def test_parameters_of_the_notebooks_own_kind_pass(inject, lines):
    inject(lines)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("round = 3", "notebook feddrm/sweep, injected parameters: unknown key 'round'; did you mean 'rounds'"),
        ('lr = "fast"', "injected parameters: lr: 'fast' is text, but the notebook's default is 0.01, a number; give"),
        ('lr = "1e-3"', "lr: '1e-3' is text, .* YAML reads 1e-3 as text: write 0.001"),
        ("rounds = 2.5", "rounds: 2.5 is a number, but the notebook's default is 20, a whole number"),
        ("lams = 0.8", "lams: 0.8 is a number, but the notebook's default is .0.1, 0.8., a list"),
        ('lams = [0.1, "0.8"]', "lams: .0.1, '0.8'. is a list"),
    ],
)
def test_what_does_not_fit_is_named_with_its_mend(inject, lines, message):
    with pytest.raises(FedlibError, match=message):
        inject(lines)


def test_a_cell_that_papermill_did_not_write_is_not_judged(inject):
    inject('lr = "fast"', first="# my own try\n")


def test_outside_ipython_nothing_happens():
    injected.check_injected("no/such/notebook")


def test_a_notebook_is_named_as_it_is_filed(project, monkeypatch):
    project.notebook("feddrm/sweep", parameters=PARAMETERS)
    shell = SimpleNamespace(user_ns={"In": ["# Parameters\nrounds = 3"], "rounds": 3})
    monkeypatch.setattr(injected, "get_ipython", lambda: shell)
    with pytest.raises(FedlibError, match="notebook: 'feddrm/swep' is unknown; did you mean 'feddrm/sweep'"):
        injected.check_injected("feddrm/swep")


def test_papermill_stops_at_a_mistyped_parameter(project):
    """papermill's own marks are where they are looked for."""
    check = 'from fedlib.injected import check_injected\ncheck_injected("feddrm/sweep")'
    path = project.notebook("feddrm/sweep", check, parameters=PARAMETERS)
    out = project.root / "out.ipynb"
    command = [sys.executable, "-m", "papermill", str(path), str(out), "-k", "python3", "-p", "lr", "fast"]
    assert subprocess.run(command, capture_output=True).returncode == 1
    errors = [o for cell in nbformat.read(out, 4).cells for o in cell.get("outputs", []) if o.output_type == "error"]
    assert [e.ename for e in errors] == ["FedlibError"]
    assert errors[0].evalue.startswith("notebook feddrm/sweep, injected parameters: lr: 'fast' is text")


def test_a_copy_that_bears_the_original_s_name_is_refused(monkeypatch):
    monkeypatch.setenv("FEDLIB_NOTEBOOK", "mine/copy")
    with pytest.raises(
        FedlibError, match="notebook mine/copy calls itself 'feddrm/sweep'; write its own name in check_"
    ):
        injected.check_injected("feddrm/sweep")
    injected.check_injected("mine/copy")
