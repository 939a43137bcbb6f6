"""The maps of a finished run, domain by domain, and what can be read from them (F²DC specification, claims 3 to 12).

Every function takes a run whose test is the official test part (test_share 0). Each domain is answered by the weights
that metrics.Crowd.domain_states gives it, deterministic masks unless noise is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from fedlib.analysis.attention import area_share, energy_inside, grad_cam
from fedlib.analysis.embedding import linear_predictions
from fedlib.analysis.routing import crowd_of
from fedlib.checks import FedlibError, check_choice, check_number
from fedlib.data.federation import Federation, Samples
from fedlib.data.pool import Pool
from fedlib.experiment import Experiment
from fedlib.forward import chunks, labelled
from fedlib.methods.f2dc import CalibratedNetwork
from fedlib.runs import Run
from fedlib.runs import run as kept
from fedlib.streams import numpy_stream, torch_stream
from fedlib.training import prepare

MAPS = {"f+": "robust", "f-": "related", "f*": "corrected", "f~": "calibrated", "f": "f"}
"""The maps of F²DC as the paper writes them, and their names in methods.f2dc.Parts."""
LAST = {"f": "backbone.layer4", "f~": "calibrated"}
"""The maps that a class activation map is made of, and the modules whose output they are; f~ is F²DC's alone."""


def measured(
    groups: Mapping[tuple[str, ...], Sequence[Experiment]],
    columns: Sequence[str],
    measure: Callable[[Run], pd.DataFrame],
) -> pd.DataFrame:
    """`measure` of each run of runs.run_groups, with the group's `columns`, seed and key; each run is measured once."""
    found: dict[str, pd.DataFrame] = {}
    tables = []
    for names, group in groups.items():
        for experiment in group:
            asked = kept(experiment)
            if asked.key not in found:
                found[asked.key] = measure(asked)
            about = dict(zip(columns, names, strict=True))
            tables.append(found[asked.key].assign(**about, seed=experiment.seed, key=asked.key))
    return pd.concat(tables, ignore_index=True)


def domains(run: Run, part: str = "test") -> Iterator[tuple[str, nn.Module, Samples]]:
    """(name, network with the weights that answer for it, samples) of each domain.

    part: test, or train, what its clients hold (a domain without a client is then left out).

    The network is one object, loaded anew for each domain: use it before going on.
    """
    check_choice("domains: part", part, ("test", "train"))
    crowd = crowd_of(run)
    central = crowd.federation.central
    if not central:
        raise FedlibError(f"run {run.key} has no official test part by domain; run it with test_share: 0.0")
    held = central if part == "test" else _trained(crowd.federation)
    for q, name in enumerate(central):
        if name in held:
            crowd.model.load_state_dict(crowd.domain_states[q])
            yield name, crowd.model.eval(), held[name]


def _trained(federation: Federation) -> dict[str, Samples]:
    """The clients' training samples, by domain; a domain that no client has is left out."""
    clients, names = federation.clients, list(federation.central)
    mixed = [client.index for client in clients if client.domain == -1]
    if mixed and len(names) > 1:
        raise FedlibError(
            f"domains: part: client {mixed[0]} holds several domains, so that its training images have none; "
            "take part: test, or a run whose partition is by_domain"
        )
    own = {name: [c.train for c in clients if c.domain in (q, -1)] for q, name in enumerate(names)}
    return {
        name: Samples(torch.cat([s.images for s in held]), torch.cat([s.labels for s in held]))
        for name, held in own.items()
        if held
    }


@torch.no_grad()
def pooled(run: Run, part: str = "test") -> dict[str, tuple[dict[str, np.ndarray], np.ndarray]]:
    """{domain: ({map: z (N, d)}, labels (N,))}: the pooled maps of F²DC, and "z", the head's input, of every method.

    F²DC's "z" is its f~ pooled.
    """
    found = {}
    for name, model, samples in domains(run, part):
        rows: dict[str, list[Tensor]] = {}
        for f in chunks(model, samples.images, model.get_submodule("backbone")):
            if isinstance(model, CalibratedNetwork):
                maps = model.calibrate(f)
                zs = {short: model.transform(getattr(maps, long)) for short, long in MAPS.items()}
                zs["z"] = zs["f~"]
            else:
                zs = {"z": model.get_submodule("transform")(f)}
            for short, z in zs.items():
                rows.setdefault(short, []).append(z.cpu())
        features = {short: torch.cat(parts).numpy() for short, parts in rows.items()}
        found[name] = features, samples.labels.cpu().numpy()
    return found


def stacked(found: dict[str, tuple[dict[str, np.ndarray], np.ndarray]], which: str = "z") -> tuple[np.ndarray, ...]:
    """(z (N, d), labels (N,), domains (N,)) of all domains together."""
    z = np.concatenate([features[which] for features, _ in found.values()])
    labels = np.concatenate([y for _, y in found.values()])
    return z, labels, np.repeat(np.arange(len(found)), [len(y) for _, y in found.values()])


def balanced(labels: np.ndarray, domains: np.ndarray, each: int, seed: int = 0) -> np.ndarray:
    """Indices, ascending, of a random sample: `each` of every class in every domain, or all where there are fewer.

    Drawn by a stream of (seed, domain, class): for the same images every method meets the same sample.
    """
    check_number("balanced: each", each, least=1, whole=True)
    drawn = []
    for q, k in sorted(set(zip(domains.tolist(), labels.tolist(), strict=True))):
        own = np.flatnonzero((domains == q) & (labels == k))
        drawn.append(numpy_stream(seed, "balanced", q, k).permutation(own)[:each])
    return np.sort(np.concatenate(drawn))


def first_of(federation: Federation, name: str) -> dict[str, list[int]]:
    """{domain: [the place of the first image of class `name` in its official test part]}: chosen by no outcome."""
    k = federation.classes.index(check_choice("first_of: class", name, federation.classes))
    found = {}
    for domain, samples in federation.central.items():
        places = (samples.labels == k).nonzero()
        if not len(places):
            raise FedlibError(f"first_of: class: {domain} has no test image of {name}; show another class")
        found[domain] = [int(places[0])]
    return found


def cams(run: Run, chosen: Mapping[str, Sequence[int]] | None = None) -> dict[str, dict[str, Tensor]]:
    """{map: {domain: CAMs (N, H, W) for the true class}} of the test images, of f and, with F²DC's modules, of f~.

    chosen: which test images of each domain; None: all.
    """
    found: dict[str, dict[str, Tensor]] = {}
    for name, model, samples in domains(run):
        index = slice(None) if chosen is None else list(chosen[name])
        images, labels = prepare(samples.images[index]), samples.labels[index]
        for short, layer in LAST.items():
            if short == "f" or isinstance(model, CalibratedNetwork):
                cam = grad_cam(model, model.get_submodule(layer), images, labels)
                found.setdefault(short, {})[name] = cam
    return found


def central_values(pool: Pool, values: np.ndarray) -> dict[str, Tensor]:
    """`values`, one for each image of the pool, such as its masks, in the order of Federation.central's test images."""
    assert pool.domains is not None
    parts = [(pool.split == 1) & (pool.domains == q) for q in range(len(pool.domain_names))]
    return {name: torch.from_numpy(values[part]) for name, part in zip(pool.domain_names, parts, strict=True)}


def attention(run: Run, masks: Mapping[str, Tensor]) -> pd.DataFrame:
    """Where the true class's CAM lies: columns domain, map, energy, pointing, area, blank; means over the test images.

    masks: bool (N, H, W) of each domain's test images. energy: attention.energy_inside. pointing: how likely one of
    the CAM's maxima, drawn at random, lies inside. (attention.pointing_game wants all of them there. On coarse maps a
    cell at the border has its maximum all the way to the border, and would miss whatever it sees.) area: what a CAM
    that knows nothing has of both. blank: the share of CAMs that are 0 everywhere; they count as such ones: left out,
    they would leave each method images of its own.
    """
    rows = []
    for short, found in cams(run).items():
        for name, cam in found.items():
            area, blank = area_share(masks[name]), cam.amax((1, 2)) == 0
            energy = torch.where(blank, area, energy_inside(cam, masks[name]))
            peaks = (cam == cam.amax((1, 2), keepdim=True)).float()
            values = (energy, energy_inside(peaks, masks[name]), area, blank)
            rows.append((name, short, *(float(value.float().mean()) for value in values)))
    return pd.DataFrame(rows, columns=["domain", "map", "energy", "pointing", "area", "blank"])


def gallery(runs: Mapping[str, Run], name: str, masks: Mapping[str, Tensor] | None = None) -> dict[str, Any]:
    """What plots.cam_grid draws: a row a domain, its first test image of class `name`, under each run's CAMs.

    runs: by the method's name; of one data set. masks: as for `attention`; with them, outlines and energies, too.
    """
    federation = next(iter(runs.values())).experiment.federation()
    chosen = first_of(federation, name)
    found = {
        f"{method}, {short}": torch.cat(list(maps.values()))
        for method, run in runs.items()
        for short, maps in cams(run, chosen).items()
    }
    images = torch.cat([federation.central[q].images[index] for q, index in chosen.items()])
    drawn = {"images": images, "cams": found, "titles": [f"{q} {name}" for q in chosen]}
    if masks is None:
        return drawn
    outlines = torch.cat([masks[q][index] for q, index in chosen.items()])
    return drawn | {"masks": outlines, "scores": {m: energy_inside(cam, outlines).tolist() for m, cam in found.items()}}


@torch.no_grad()
def readouts(run: Run) -> pd.DataFrame:
    """Accuracy of each map under each read-out: columns domain, map, readout, accuracy (0 to 1).

    readout: "auxiliary head" m, "main head" h, both as trained, and "linear probe", a logistic regression fitted to
    that map of all clients' training images: m was trained to be wrong on f-, so it is no witness of what f- holds.
    """
    test, train = pooled(run), pooled(run, "train")
    rows = []
    heads = _heads(run)
    for short in ("f+", "f-", "f*", "f~"):
        z, y, _ = stacked(train, short)
        for name, (features, labels) in test.items():
            for readout, head in heads[name].items():
                right = head(torch.from_numpy(features[short])).argmax(1).numpy() == labels
                rows.append((name, short, readout, right.mean()))
        z_test, y_test, origin = stacked(test, short)
        read = linear_predictions(z, y, z_test) == y_test
        rows += [(name, short, "linear probe", read[origin == q].mean()) for q, name in enumerate(test)]
    return pd.DataFrame(rows, columns=["domain", "map", "readout", "accuracy"])


def _heads(run: Run) -> dict[str, dict[str, nn.Linear]]:
    """The auxiliary and the main head of each domain, on the CPU."""
    found = {}
    for name, model, _ in domains(run):
        if not isinstance(model, CalibratedNetwork):
            raise FedlibError(f"readouts: {type(run.experiment.method).__name__} has no maps; give a run of F2DC")
        heads = {"auxiliary head": model.auxiliary, "main head": model.head}
        found[name] = {readout: _copy(head) for readout, head in heads.items()}
    return found


def _copy(head: nn.Linear) -> nn.Linear:
    copied = nn.Linear(head.in_features, head.out_features)
    copied.load_state_dict(head.state_dict())
    return copied


@torch.no_grad()
def masks(run: Run, draws: int = 5) -> pd.DataFrame:
    """Accuracy with other masks at test time: columns domain, mask, draw, accuracy (0 to 1).

    Raises FedlibError for a run without masks, and for less than one draw.

    mask: "deterministic", what all tables show; "noisy", what the released code does, `draws` times; "stripped", the
    trunk and h alone, f~ = f.
    """
    check_number("masks: draws", draws, least=1, whole=True)
    rows = []
    for name, model, samples in domains(run):
        model = _with_masks("masks", run, model)
        asked = [("deterministic", 0), *(("noisy", i) for i in range(draws)), ("stripped", 0)]
        right = dict.fromkeys(asked, 0)
        streams = {i: torch_stream(run.experiment.seed, "noisy mask", name, i) for i in range(draws)}
        for f, labels in labelled(model, samples, model.backbone):
            for mask, draw in asked:
                stream = streams[draw] if mask == "noisy" else None
                shown = f if mask == "stripped" else model.calibrate(f, stream).calibrated
                right[mask, draw] += int((model.head(model.transform(shown)).argmax(1) == labels).sum())
        rows += [(name, mask, draw, count / len(samples)) for (mask, draw), count in right.items()]
    return pd.DataFrame(rows, columns=["domain", "mask", "draw", "accuracy"])


def _with_masks(asked: str, run: Run, model: nn.Module) -> CalibratedNetwork:
    if not isinstance(model, CalibratedNetwork):
        raise FedlibError(f"{asked}: {type(run.experiment.method).__name__} has no masks; give a run of F2DC")
    return model


@torch.no_grad()
def mask_statistics(run: Run) -> pd.DataFrame:
    """A row a domain: mean of the deterministic mask M, its variance between channels (of their means over images and
    places) and between places (within a channel of one image, averaged), and the mean cosine of l+ and l-.

    Raises FedlibError for a run without masks.
    """
    rows = []
    for name, model, samples in domains(run):
        model = _with_masks("mask_statistics", run, model)
        channels, places, cosine = torch.zeros(()), 0.0, 0.0
        for f in chunks(model, samples.images, model.backbone):
            maps = model.calibrate(f)
            channels = channels + maps.mask.mean((2, 3)).sum(0)
            places += float(maps.mask.var((2, 3)).mean(1).sum())
            plus, minus = model.transform(maps.robust), model.transform(maps.related)
            cosine += float(torch.cosine_similarity(plus, minus, eps=1e-8).sum())
        n, means = len(samples), channels / len(samples)
        rows.append((name, float(means.mean()), float(means.var()), places / n, cosine / n))
    return pd.DataFrame(rows, columns=["domain", "mean", "channel_variance", "spatial_variance", "cosine"])
