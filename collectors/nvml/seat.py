"""A seat: one GPU of the node, who reads it now, and what is wrong with it. A look: what one tick has seen.

To treat another kind of trouble: a member of `Trouble`, its handling in `crew.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from collectors.nvml.reader import Reader


class Trouble(StrEnum):
    """What is wrong with a GPU."""

    LATE = "late"  #: it is slower than the others may wait for: read apart, at its own pace
    HANGS = "hangs"  #: a call did not come back: its process was killed
    LOST = "lost"
    RESET = "reset"  #: it answers that it has to be reset
    FAILED = "failed"  #: it cannot be opened


@dataclass(slots=True, kw_only=True)
class Seat:
    """One GPU. It is read with the others (`together`), or by a process of its own (`apart`), or by nobody now."""

    number: int
    where: int | str  #: index at first, bus id as soon as it is known
    bus: str | None = None
    uuid: str | None = None
    statics: dict[str, Any] = field(default_factory=dict)
    together: bool = True
    apart: Reader | None = None
    stuck: Reader | None = None  #: killed, but still in the driver
    trouble: Trouble | None = None
    words: str = ""
    code: int = 0  #: NVML's, of a GPU that is lost or cannot be opened
    since: float = 0.0
    told: bool = False
    retry_at: float = 0.0
    failures: int = 0
    good: int = 0  #: readings in time, one after the other, since it is read apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """A call that did not come back (`over` False), or one that did or whose GPU answers again (`over` True)."""

    seat: Seat
    call: str
    seconds: float
    over: bool


@dataclass(slots=True, kw_only=True)
class Look:
    """What one tick has seen: readings by seat, oldest first; XIDs as (seat, code); hangs; what else is to be told."""

    readings: dict[int, list[Mapping[str, Any]]] = field(default_factory=dict)
    xids: list[tuple[int, int]] = field(default_factory=list)
    hangs: list[Hang] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
