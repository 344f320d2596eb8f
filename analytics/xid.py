"""What each XID means for a verdict: application error, or hardware that needs somebody.

To add a code: one line in `XIDS`. Source: NVIDIA's XID catalogue, docs.nvidia.com/deploy/xid-errors.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class XidPolicy:
    """`tier` is the best tier a GPU with this XID can have; None: the code says nothing about the GPU.

    Sites change it with a file: `analytics/policy.py`.
    """

    hardware: bool
    tier: str | None
    action: str
    cause: str | None
    text: str
    count: int = 1  #: so many on one GPU
    window_s: float = 86_400.0  #: within so long


def _application(text: str) -> XidPolicy:
    return XidPolicy(hardware=False, tier=None, action="none", cause=None, text=text)


def _hardware(tier: str, action: str, cause: str | None, text: str) -> XidPolicy:
    return XidPolicy(hardware=True, tier=tier, action=action, cause=cause, text=text)


XIDS: Mapping[int, XidPolicy] = MappingProxyType(
    {
        13: _application("graphics engine exception, most often an error of the program"),
        31: _application("memory page fault, most often an error of the program"),
        43: _application("GPU stopped processing a program's channel"),
        45: _application("program's channels removed, usually after another error"),
        48: _hardware("quarantine", "reset", "memory", "double-bit ECC error"),
        62: _hardware("quarantine", "reset", None, "internal micro-controller halted"),
        63: _hardware("degraded", "reset", "memory", "row remap or page retirement recorded"),
        64: _hardware("quarantine", "repair", "memory", "row remap or page retirement failed"),
        74: _hardware("degraded", "reset", "link", "NVLink error"),
        79: _hardware("quarantine", "drain", "link", "GPU has fallen off the bus"),
        92: _hardware("degraded", "watch", "memory", "high rate of corrected ECC errors"),
        94: _hardware("degraded", "reset", "memory", "contained ECC error"),
        95: _hardware("quarantine", "reset", "memory", "uncontained ECC error"),
        119: _hardware("quarantine", "reset", None, "GPU system processor timed out"),
        120: _hardware("quarantine", "reset", None, "GPU system processor error"),
        140: _hardware("quarantine", "reset", "memory", "unrecovered ECC error"),
    }
)
"""The known codes."""

UNLISTED = XidPolicy(
    hardware=False, tier="standard", action="watch", cause=None, text="not in the table of known codes"
)
"""Any other code: worth a look, no demotion."""


def policy(code: int) -> XidPolicy:
    """What this XID means."""
    return XIDS.get(code, UNLISTED)
