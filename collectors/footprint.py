"""What the agent costs its node: CPU seconds and resident memory of this process and of the children it keeps.

To count another thing: a field of `Cost`, read in `Footprint.cost`.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

PROC = Path("/proc")


@runtime_checkable
class Parent(Protocol):
    """A collector that keeps child processes."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Those that are not known to be gone."""
        ...

    @property
    def starts(self) -> int:
        """How many were started so far."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """CPU seconds since the start, never falling, and resident bytes now; None where the system does not tell."""

    own_cpu_s: float
    children_cpu_s: float
    own_bytes: int | None
    children_bytes: int | None


class Footprint:
    """Reads the cost; one reading takes some ten microseconds a process.

    Children that have ended count with all they took, whatever they were: what `nvidia-smi` costs is the agent's cost.
    Those that run are read from `/proc`; where there is none they count when they have ended.
    """

    def __init__(
        self,
        pids: Callable[[], Iterable[int]],
        *,
        proc: Path = PROC,
        times: Callable[[], os.times_result] = os.times,
    ) -> None:
        self._pids = pids
        self._proc = proc
        self._times = times
        self._ticks = os.sysconf("SC_CLK_TCK")
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._most = 0.0

    def cost(self) -> Cost:
        """The cost now."""
        times = self._times()
        running = 0.0
        children: int | None = 0
        for pid in self._pids():
            running += self._cpu_s(pid)
            size = self._bytes(pid)
            children = None if children is None or size is None else children + size
        self._most = max(self._most, times.children_user + times.children_system + running)
        return Cost(
            own_cpu_s=times.user + times.system,
            children_cpu_s=self._most,
            own_bytes=self._bytes(os.getpid()),
            children_bytes=children,
        )

    def _cpu_s(self, pid: int) -> float:
        try:
            stat = (self._proc / str(pid) / "stat").read_bytes()
            fields = stat[stat.rindex(b")") + 2 :].split()  # the name before it may hold anything
            return sum(map(int, fields[11:15])) / self._ticks
        except (OSError, ValueError):
            return 0.0

    def _bytes(self, pid: int) -> int | None:
        try:
            return int((self._proc / str(pid) / "statm").read_bytes().split()[1]) * self._page
        except FileNotFoundError:
            return 0 if (self._proc / "self").exists() else None
        except (OSError, ValueError, IndexError):
            return None
