import subprocess
import sys

import pytest
import torch

from fedlib.checks import FedlibError
from fedlib.models import MODELS, TEXT, build, check_spec, module_of

RGB, TOKENS = (3, 32, 32), (50, 9)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_builds_by_name(name):
    net = build({"name": name}, TOKENS if name in TEXT else RGB, 7)
    x = torch.zeros(2, 9, dtype=torch.int64) if name in TEXT else torch.zeros(2, *RGB)
    assert net(x).shape == (2, 7)
    assert net.head.in_features == net.width
    assert {parameter.split(".")[0] for parameter in net.state_dict()} <= {"backbone", "transform", "head"}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_the_other_kind_is_refused(name):
    with pytest.raises(FedlibError) as caught:
        build({"name": name}, RGB if name in TEXT else TOKENS, 7)
    read, held = ("texts", "images") if name in TEXT else ("images", "texts")
    assert f"model {name}: it reads {read}, but the data set holds {held}; take " in str(caught.value)
    assert ("small_cnn" if name in TEXT else "text_cnn") in str(caught.value).split("; take ")[1]


def test_options_reach_the_builder():
    assert (
        build({"name": "lenet_gn", "sharing": "shallow"}, (3, 32, 32), 10).backbone(torch.zeros(1, 3, 32, 32)).ndim == 4
    )


def test_module_of_names_the_builders_module_alone():
    assert module_of({"name": "resnet18_gn"}) == "fedlib.models.resnet"
    assert module_of({"name": "small_cnn"}) == "fedlib.models.cnn"


def test_the_registry_imports_no_model():
    code = "import sys, fedlib.models; print([m for m in sys.modules if m.startswith(('torch', 'fedlib.models.'))])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "lenet_ng"}, "model: 'lenet_ng' is unknown; did you mean 'lenet_gn'"),
        ({"name": ["lenet_gn"]}, "is unknown"),
        ({"sharing": "deep"}, "names no model; give a mapping with a name"),
        ("lenet_gn", "'lenet_gn' names no model"),
        ({"name": "lenet_gn", "sharin": "deep"}, "model lenet_gn: unknown key 'sharin'; did you mean 'sharing'"),
        ({"name": "lenet_gn", "sharing": "depe"}, "model lenet_gn: sharing: 'depe' is unknown; did you mean 'deep'"),
        ({"name": "small_cnn", "sharing": "deep"}, "model small_cnn: unknown key 'sharing'"),
        ({"name": "small_cnn", "classes": 3}, "model small_cnn: unknown key 'classes'"),
    ],
)
def test_wrong_specs_are_refused(spec, message):
    with pytest.raises(FedlibError, match=message):
        check_spec(spec)
    with pytest.raises(FedlibError, match=message):
        build(spec, (3, 32, 32), 10)
