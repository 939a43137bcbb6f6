"""Experiment: the plain description of one run, validated when it is made, with the key under which it is kept."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from typing import Any

import torch

from fedlib import models
from fedlib.checks import FedlibError, check_keys, check_number, whole_as_float
from fedlib.data import drift as drifts
from fedlib.data import partition as partitions
from fedlib.data import shift as shifts
from fedlib.data import vision
from fedlib.data.drifting import make_drifting
from fedlib.data.federation import Federation, make_federation
from fedlib.data.pool import Pool
from fedlib.methods.feddrm import FedDRM
from fedlib.methods.feroma import FEROMA
from fedlib.methods.method import Method, Task
from fedlib.probes import check_probes, probe_modules
from fedlib.rounds import Plan
from fedlib.sources import fingerprints
from fedlib.training import Local, check_texts


@dataclass(frozen=True)
class Experiment:
    """One run.

    data, samples: the data set's name, and how many of its images, or texts, to draw (None: all).
    clients, partition, shift: m, and the specs of data.partition and data.shift.
    drift: the spec of data.drift, which then divides the samples in place of `partition`; None: no drift.
    test_share, validation_share: of each client's samples; validation is taken from the training part. test_share 0:
        clients are trained on the official training part, and tested on the official test part, domain by domain;
        with drift, each on its share of it. With drift, test_share is of the whole data set.
    model: the spec of models.build. local, plan: what happens within and between rounds.
    probes: names of extra measurements (probes.PROBES) at every evaluated round.
    seed: of the partition, the initial network, the cohorts and the mini-batches.
    """

    method: Method
    plan: Plan
    data: str = "digits"
    samples: int | None = None
    clients: int = 8
    partition: Mapping[str, Any] = field(default_factory=lambda: {"name": "iid"})
    shift: Mapping[str, Any] | None = None
    drift: Mapping[str, Any] | None = None
    test_share: float = 0.3
    validation_share: float = 0.0
    model: Mapping[str, Any] = field(default_factory=lambda: {"name": "small_cnn"})
    local: Local = field(default_factory=Local)
    probes: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.method, Method):
            raise FedlibError(f"method: {self.method!r} is no Method; use methods.make('FedDRM') or FedDRM()")
        if type(self.method).__module__ == "__main__":
            raise FedlibError(
                f"method: {type(self.method).__name__} is defined in the notebook or script itself; put it into a file "
                "of its own in fedlib/methods, for its code is part of the run's key"
            )
        if not isinstance(self.data, str):
            raise FedlibError(f"data: {self.data!r} is no name of a data set; see `fedlib data list`")
        if self.samples is not None:
            check_number("samples", self.samples, least=1, whole=True)
        check_number("clients", self.clients, least=1, whole=True)
        check_number("seed", self.seed, least=0, whole=True)
        check_number("test_share", self.test_share, least=0.0, below=1.0)
        check_number("validation_share", self.validation_share, least=0.0, below=1.0)
        partitions.check_spec(self.partition)
        shifts.check_spec(self.shift)
        drifts.check_spec(self.drift, self.plan.rounds)
        models.check_spec(self.model)
        check_probes(self.probes)
        for t in range(1, self.plan.rounds + 1):
            self.plan.present(self.clients, t)
        self._check_together()
        whole_as_float(self)
        self.method.check(self.plan.rounds, self.plan.lr, self.local)

    def _check_together(self) -> None:
        """What only several settings together can tell."""
        if "validation" in self.probes and self.validation_share == 0:
            raise FedlibError("probes: validation needs validation samples; set validation_share above 0, such as 0.1")
        if "adapted" in self.probes and self.plan.schedule == "cosine":
            raise FedlibError(
                "probes: adapted trains on at the last round's rate, near zero on a cosine; set schedule: constant"
            )
        if "drift" in self.probes and not isinstance(self.method, FedDRM):
            raise FedlibError(
                f"probes: drift compares FedDRM's two losses; {type(self.method).__name__} has no client head"
            )
        self._check_drift()
        self._check_profiles()
        if self.test_share == 0 and self.drift is None:
            own = [name for name in self.probes if name in ("adapted", "validation", "random_crop")]
            if own or self.shift:
                what = f"probes: {own[0]}" if own else f"shift: {self.shift}"
                raise FedlibError(f"{what} needs test samples of each client; set test_share above 0, such as 0.3")
        if self.test_share == 0 and self.drift is None and self.method.differs_by_client:
            raise FedlibError(
                f"test_share: 0 tests a domain by the mean of its clients' models, but those of "
                f"{type(self.method).__name__} are networks of their own; set test_share above 0, such as 0.3"
            )
        if self.method.needs_validation and self.validation_share == 0:
            raise FedlibError(
                f"{type(self.method).__name__} needs validation samples; set validation_share above 0, such as 0.1, "
                "or, where it has that option, selection: train"
            )
        for client in self.plan.joins.keys() & self.plan.leaves.keys():
            if self.plan.joins[client] > self.plan.leaves[client]:
                raise FedlibError(
                    f"joins and leaves: client {client} joins in round {self.plan.joins[client]}, after its last round "
                    f"{self.plan.leaves[client]}; let it join earlier"
                )
        rows = len(self.shift["mean"]) if self.shift and self.shift["name"] == "standardise" else 1
        if rows not in (1, self.clients):
            raise FedlibError(
                f"shift 'standardise': {rows} rows for {self.clients} clients; give one a client, or one for all"
            )

    def _check_drift(self) -> None:
        """Drift decides by itself who has which samples, and how they look."""
        if self.drift is None:
            if "visitors" in self.probes:
                raise FedlibError("probes: visitors are met under drift; give drift, or leave the probe out")
            return
        if self.partition != {"name": "iid"}:
            raise FedlibError(f"partition: {dict(self.partition)}, but drift divides the samples itself; leave one out")
        if self.shift is not None:
            raise FedlibError(f"shift: {dict(self.shift)}, but drift decides how images look; leave one out")

    def _check_profiles(self) -> None:
        """What is asked of FEROMA's profiles has to be there."""
        if not isinstance(self.method, FEROMA):
            if "mapping" in self.probes:
                raise FedlibError(
                    f"probes: mapping tells FEROMA's weights, but {type(self.method).__name__} has none; leave it out"
                )
        elif self.method.labelled and (self.drift is None or not drifts.read(self.drift).few):
            raise FedlibError(
                f"{type(self.method).__name__}.labelled: true, but visitors give no labelled samples; set "
                "few_per_class of drift above 0, or labelled: false"
            )

    def description(self) -> dict[str, Any]:
        """Plain data, canonical: what the key is made of, and what experiment.json shows."""
        plain = asdict(self)
        plain["method"] = {"name": type(self.method).__name__, **asdict(self.method)}
        return json.loads(json.dumps(plain, sort_keys=True))

    def columns(self) -> dict[str, Any]:
        """What names this run in a table: method and its hyper-parameters, data, partition, shift, model, seed."""
        return {
            "method": type(self.method).__name__,
            **asdict(self.method),
            "data": self.data,
            "partition": label(self.partition),
            "shift": label(self.shift),
            "drift": label(self.drift),
            "model": self.model["name"],
            "clients": self.clients,
            "seed": self.seed,
        }

    def federation(self) -> Federation:
        """The clients with their samples. Raises FedlibError if the data set is missing or cannot be divided."""
        pool, spec = vision.load(self.data), (self.clients, _frozen(self.partition), _frozen(self.shift), self.seed)
        if pool.words:
            self._check_texts()
        amounts = (self.samples, self.test_share, self.validation_share)
        if self.drift is not None:
            return _drifting(pool, self.clients, _frozen(self.drift), self.plan.rounds, self.seed, *amounts)
        return _federation(pool, *spec, *amounts)

    def _check_texts(self) -> None:
        """What texts do not have: pixels."""
        check_texts(self.local)
        if "random_crop" in self.probes:
            raise FedlibError(f"probes: random_crop cuts images, but {self.data!r} is text; leave it out")

    def task(self, federation: Federation) -> Task:
        """What method.build needs to know."""
        classes = len(federation.classes)
        domains = tuple(client.domain for client in federation.clients)
        return Task(self.model, federation.shape, classes, federation.sizes, self.plan.rounds, self.seed, domains)

    def sources(self) -> dict[str, str]:
        """Fingerprints of the modules that decide this run's result."""
        rooms = ["fedlib.rounds", models.module_of(self.model), *probe_modules(self.probes)]
        own = [cls.__module__ for cls in type(self.method).__mro__]
        data = "fedlib.data.federation" if self.drift is None else "fedlib.data.drifting"
        return fingerprints([*rooms, *own, data])

    def parts(self) -> dict[str, Any]:
        """Everything that the key is the hash of."""
        return {
            "experiment": self.description(),
            "data": vision.load(self.data).fingerprint,
            "source": self.sources(),
            "torch": torch.__version__,
            "device": device().type,
        }

    def key(self) -> str:
        """16 hexadecimal digits."""
        return key_of(self.parts())


def make_experiment(method: Method, **settings: Any) -> Experiment:
    """An Experiment from flat settings, as they stand in a notebook's parameters.

    Each goes where it belongs: to Plan (rounds, lr, …), to Local (steps, batch_size, …) or to the Experiment itself.
    """
    homes = {cls: [f.name for f in fields(cls)] for cls in (Plan, Local, Experiment)}
    check_keys("experiment", settings, [name for names in homes.values() for name in names])
    plan, local, own = ({k: v for k, v in settings.items() if k in homes[cls]} for cls in (Plan, Local, Experiment))
    if "epochs" in local:
        local.setdefault("steps", None)
    return Experiment(method=method, plan=Plan(**plan), local=Local(**local), **own)


def key_of(parts: Mapping[str, Any]) -> str:
    """The hash of the canonical JSON of `parts`."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def device() -> torch.device:
    """FEDLIB_DEVICE, or the first GPU, or the CPU."""
    name = os.environ.get("FEDLIB_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(name)
    except RuntimeError as error:
        raise FedlibError(f"FEDLIB_DEVICE: {name!r} is no device; use cpu or cuda") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise FedlibError(f"FEDLIB_DEVICE: torch finds no GPU for {name!r} on this machine; use cpu, or leave it unset")
    return found


def label(spec: Mapping[str, Any] | None) -> str:
    """{"name": "dirichlet", "alpha": 0.3} -> "dirichlet-0.3"; None -> "none"."""
    return "none" if spec is None else "-".join(str(value) for value in spec.values())


def _frozen(spec: Mapping[str, Any] | None) -> str:
    return json.dumps(spec if spec is None else dict(spec), sort_keys=True)


@lru_cache(maxsize=4)
def _federation(
    pool: Pool,
    clients: int,
    partition: str,
    shift: str,
    seed: int,
    samples: int | None,
    test: float,
    validation: float,
) -> Federation:
    return make_federation(pool, clients, json.loads(partition), json.loads(shift), seed, samples, test, validation)


@lru_cache(maxsize=4)
def _drifting(
    pool: Pool, clients: int, drift: str, rounds: int, seed: int, samples: int | None, test: float, validation: float
) -> Federation:
    return make_drifting(pool, clients, json.loads(drift), rounds, seed, samples, test, validation)
