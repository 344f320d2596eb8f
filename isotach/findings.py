"""A finding of `isotach doctor`: what was looked at, how it is, and how to mend it.

To add a check: `isotach/checks.py`.
"""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "wrong"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the doctor: what was looked at, how it is, what was seen, and the remedy if there is one."""

    check: str
    state: State
    seen: str
    remedy: str = ""
