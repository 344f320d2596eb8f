"""Repeats and their times: of the wall, and of the process's own work, which other processes disturb less.

To time something new: `repeats` around it.
"""

import gc
import time
from collections.abc import Callable
from typing import NamedTuple


class Times(NamedTuple):
    """Seconds of each repeat."""

    wall_s: list[float]
    cpu_s: list[float]


def repeats(work: Callable[[], object], times: int, *, warm: int = 1) -> Times:
    """Seconds of `work`, run so many times after some that do not count; garbage is collected before each."""
    for _ in range(warm):
        work()
    found = Times([], [])
    for _ in range(times):
        gc.collect()
        cpu, wall = time.process_time(), time.perf_counter()
        work()
        found.cpu_s.append(time.process_time() - cpu)
        found.wall_s.append(time.perf_counter() - wall)
    return found


def rates(amount: float, seconds: list[float]) -> list[float]:
    """Amount per second of each repeat."""
    return [amount / one for one in seconds]


def milliseconds(seconds: list[float]) -> list[float]:
    """Seconds as milliseconds."""
    return [1e3 * one for one in seconds]
