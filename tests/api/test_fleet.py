"""The fleet that answers are made of: which state of the store it is, and when.

To add a case: a change of the store or the clock, and what is asked then.
"""

import pytest
from support.store import MINUTE, START, Clock, scores

from analytics.store import Store
from api.fleet import Fleets


def made(store: Store, clock: Clock) -> Fleets:
    """Fleets of the store; tiers hold for five minutes."""
    return Fleets(store, topology=None, clock_ns=clock, stale_after_ns=5 * MINUTE)


def write(store: Store, tier: str, at_ns: int = START) -> None:
    """One GPU has this tier."""
    store.write({"scores": scores([{"gpu_uuid": "GPU-1", "node": "n1", "tier": tier, "as_of_ns": at_ns}])})


@pytest.mark.parametrize(
    ("age_s", "later_ns", "tier"),
    [
        (0, 0, "quarantine"),
        (60, 0, "standard"),
        (60, MINUTE, "standard"),
        (60, MINUTE + 1, "quarantine"),
        (3_600, 5 * MINUTE + 1, "quarantine"),
    ],
)
def test_only_who_allows_it_gets_the_state_before_a_change(age_s: int, later_ns: int, tier: str) -> None:
    """Neither older than that, nor with a tier in it that has expired."""
    clock = Clock(START)
    with Store(None) as store:
        write(store, "standard")
        fleets = made(store, clock)
        fleets.floored("compute")
        write(store, "quarantine")
        clock.now_ns += later_ns
        found = fleets.floored("compute", max_age_ns=age_s * 10**9)
        assert found.gpus["tier"].to_list() == [tier]


def test_once_the_new_state_is_ready_everybody_gets_it() -> None:
    """What was made ready after a change is served to those, too, who would have taken the state before."""
    clock = Clock(START)
    with Store(None) as store:
        write(store, "standard")
        fleets = made(store, clock)
        fleets.floored("compute")
        write(store, "quarantine")
        fleets.warm()
        assert fleets.floored("compute", max_age_ns=MINUTE).gpus["tier"].to_list() == ["quarantine"]
