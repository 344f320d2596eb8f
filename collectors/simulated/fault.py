"""One fault on a schedule, and what a kind of fault is.

To let a fault carry more: a field here, taken in `schedule.py`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectors.simulated.conditions import Conditions

Rows = NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault on a schedule. Targets are (node index, slot); seconds count from the fleet's start."""

    name: str
    kind: str
    targets: tuple[tuple[int, int], ...]
    start_s: float
    end_s: float
    size: float
    ramp_s: float
    metrics: tuple[str, ...]
    tiers: tuple[str, ...]
    causes: tuple[str | None, ...]

    def ticks(self, interval_s: float) -> tuple[int, int | None]:
        """First tick at which it acts, and the first at which it does no longer; None if it stays."""
        end = None if math.isinf(self.end_s) else max(1, math.ceil(self.end_s / interval_s))
        return math.ceil(self.start_s / interval_s), end


Apply = Callable[[Conditions, Rows, Fault, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultKind:
    """A kind of fault: the meaning, default and limits of its size, and the tiers and causes that fit it."""

    help: str
    unit: str = ""
    size: float = 0.0
    low: float = 0.0
    high: float = 0.0
    tiers: tuple[str, ...]
    causes: tuple[str | None, ...]
    apply: Apply | None = None
