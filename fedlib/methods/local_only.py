"""LocalOnly: every client trains alone.

The floor under personalised methods: what collaboration gains is measured from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedlib.methods.method import Method, Work


@dataclass(frozen=True)
class LocalOnly(Method):
    """Client i: w_i <- E steps of SGD on the cross-entropy from w_i. Nothing travels.

    All w_i start as the same network, the one that every method starts from. Who is not drawn stands still.
    """

    several_labels: ClassVar[bool] = True

    @property
    def differs_by_client(self) -> bool:
        return True

    def shared(self, name: str) -> bool:
        return False

    def start(self, work: Work) -> None:
        work.model.load_state_dict(work.memory)
