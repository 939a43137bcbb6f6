"""FedBN: batch normalisation stays with its client.

Li, Jiang, Zhang, Kamp, Dou: FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedlib.checks import FedlibError
from fedlib.methods.method import Method, Task
from fedlib.models.resnet10 import is_norm


@dataclass(frozen=True)
class FedBN(Method):
    """Client k: E steps on (theta, b_k), b_k: scale, shift and running statistics of its BatchNorm layers.

    Server: theta <- sum_k (n_k / n) theta_k over all other parts; b_k never travels, and starts alike for all clients.
    There is no model for all: client k predicts with (theta, b_k), a domain is answered by the mean of its clients' b_k
    (see metrics.Crowd.domain_states).
    """

    def build(self, task: Task) -> nn.Module:
        """Raises FedlibError for a network without BatchNorm, on which this would be FedAvg."""
        model = super().build(task)
        if not any(isinstance(module, _BatchNorm) and is_norm(name) for name, module in model.named_modules()):
            raise FedlibError(
                f"{type(self).__name__} keeps BatchNorm layers with their clients, and model {task.model['name']} has "
                "none; take one with BatchNorm, such as resnet10, or the method FedAvg"
            )
        return model

    def shared(self, name: str) -> bool:
        return super().shared(name) and not is_norm(name)
