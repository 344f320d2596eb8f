"""What each XID means.

To add a code: nothing here unless its meaning is in doubt.
"""

import pytest

from analytics.xid import UNLISTED, XIDS, policy
from telemetry.tables import ACTIONS, TIERS


@pytest.mark.parametrize("code", [13, 31, 43, 45])
def test_an_application_error_is_never_a_verdict_on_hardware(code: int) -> None:
    """A crashing program demotes no GPU."""
    assert (policy(code).hardware, policy(code).tier) == (False, None)


@pytest.mark.parametrize("code", [48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140])
def test_a_hardware_error_demotes_and_asks_for_something(code: int) -> None:
    """Every code that needs somebody says who and how bad."""
    assert policy(code).hardware
    assert policy(code).tier in ("degraded", "quarantine")
    assert policy(code).action in ACTIONS[1:]


def test_an_unlisted_code_is_watched_and_demotes_nobody() -> None:
    """Drivers invent codes faster than tables learn them."""
    assert policy(999) is UNLISTED
    assert (UNLISTED.tier, UNLISTED.action) == ("standard", "watch")
    assert {p.tier for p in XIDS.values()} - {None} <= set(TIERS)
