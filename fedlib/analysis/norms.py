"""How much of a method's accuracy under domain skew is BatchNorm's: the same weights with other running statistics.

FedAvg averages BatchNorm's running means and variances over domains, so that the one model is tested with statistics
that fit no domain (F²DC specification, trap 17). Here they are estimated anew for each domain, on its clients' training
images and without labels, and everything else is left as it was trained.
"""

from __future__ import annotations

import pandas as pd
import torch
from torch import nn

from fedlib.analysis.features import domains
from fedlib.checks import FedlibError
from fedlib.data.federation import Samples
from fedlib.metrics import accuracy
from fedlib.runs import Run
from fedlib.training import prepare

ESTIMATION_BATCH = 128


@torch.no_grad()
def reestimate(model: nn.Module, samples: Samples) -> None:
    """Set every BatchNorm's running statistics to the plain mean of those of the batches of `samples`, in place.

    The batches are of ESTIMATION_BATCH images in order, without the smaller rest if there is another one. Raises
    FedlibError for a network without BatchNorm.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    if not norms:
        raise FedlibError("reestimate: the network has no BatchNorm; take resnet10")
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a cumulative mean over the batches
    model.train()
    batches = samples.images.split(ESTIMATION_BATCH)
    for images in batches[:-1] if len(batches) > 1 and len(batches[-1]) < ESTIMATION_BATCH else batches:
        model(prepare(images))
    model.eval()
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


@torch.no_grad()
def by_statistics(run: Run) -> pd.DataFrame:
    """Columns domain, statistics, accuracy (0 to 1): "as trained", and "of the domain", estimated anew."""
    train = {name: samples for name, _, samples in domains(run, "train")}
    class_logits = run.experiment.method.class_logits
    rows = []
    for name, model, samples in domains(run):
        rows.append((name, "as trained", float(accuracy(model, samples, class_logits))))
        reestimate(model, train[name])
        rows.append((name, "of the domain", float(accuracy(model, samples, class_logits))))
    return pd.DataFrame(rows, columns=["domain", "statistics", "accuracy"])
