"""One line of the doctor.

To say more of a finding: another field here, shown by `isotach/commands/doctor.py`.
"""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "wrong"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was looked at, how it is, what was seen; what is lost by it and the remedy, empty if there is nothing."""

    check: str
    state: State
    seen: str
    lost: str = ""
    remedy: str = ""
