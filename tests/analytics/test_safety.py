"""What stands between evidence and a tier: the breaker, observing only, operators; driven step by step.

To add a rule: a fleet, evidence that asks for a tier, what must become of it.
"""

from collections.abc import Sequence
from typing import Any

import polars as pl
import pytest
from support.scorer import Scorer, busy_rows, fleet

from telemetry.tables import TIERS

SLOW = {"effective_clock_mhz": 1250.0}


def windows(
    scorer: Scorer, odd: Sequence[str] = (), *, first: int = 0, count: int = 5, change: dict[str, Any] | None = None
) -> None:
    """So many windows in which some GPUs are slow."""
    for at in range(first, first + count):
        rows = busy_rows(scorer.gpus)
        for row in rows:
            if row["gpu_uuid"] in odd:
                row |= SLOW if change is None else change
        scorer.window(rows, at=at)


def names(count: int) -> list[str]:
    """GPUs on different nodes."""
    return [f"g{i % 10}-{i // 10}" for i in range(count)]


def demoted(scorer: Scorer) -> set[str]:
    """GPUs that are degraded or quarantined."""
    return set(scorer.scores.filter(pl.col("tier").is_in(["degraded", "quarantine"]))["gpu_uuid"])


def test_the_breaker_holds_what_would_demote_more_than_its_share() -> None:
    """Ten of 80 GPUs pass at 15 %, twenty do not: nobody is demoted, no transition is written, the reason says so."""
    calm = Scorer(fleet(10))
    windows(calm, names(10))
    assert demoted(calm) == set(names(10))
    stormy = Scorer(fleet(10))
    windows(stormy, names(20), count=8)
    assert demoted(stormy) == set()
    assert stormy.transitions.is_empty()
    assert all({"slow", "breaker_open"} <= set(stormy.codes(gpu)) for gpu in names(20))
    assert stormy.fleet == ("breaker_open",)


def test_at_least_one_gpu_may_always_be_demoted_and_a_second_within_the_hour_may_not() -> None:
    """One per cent of 32 GPUs is none, so one is let through; the next one waits until the hour is over."""
    scorer = Scorer(fleet(4), breaker_ratio=0.01)
    windows(scorer, ["g0-0"])
    assert demoted(scorer) == {"g0-0"}
    windows(scorer, ["g0-0", "g1-0"], first=5, count=8)
    assert demoted(scorer) == {"g0-0"}
    assert "breaker_open" in scorer.codes("g1-0")


def test_the_breaker_stays_open_until_an_operator_resets_it_and_then_lets_through_what_it_held() -> None:
    """Time alone closes nothing; a restart keeps it open; a reset is one event for the fleet."""
    scorer = Scorer(fleet(10))
    windows(scorer, names(20), count=8)
    windows(scorer, names(20), first=100, count=2)
    scorer.restart()
    windows(scorer, names(20), first=102, count=1)
    assert demoted(scorer) == set()
    scorer.events({"kind": "breaker_reset", "node": "", "gpu_uuid": ""}, at=103)
    assert demoted(scorer) == set(names(20))
    moved = scorer.transitions.filter(pl.col("gpu_uuid").is_in(names(20)))
    assert set(moved["to_tier"]) == {"degraded"}
    assert all(reasons != "[]" for reasons in moved["reasons"])
    windows(scorer, names(20), first=103, count=2)
    assert scorer.fleet == ()


def test_hard_faults_pass_an_open_breaker() -> None:
    """A GPU that fell off the bus is quarantined at once, whatever else is held."""
    scorer = Scorer(fleet(10))
    windows(scorer, names(20), count=6)
    scorer.events({"kind": "xid", "gpu_uuid": "g3-7", "node": "n3", "code": 79}, at=6.5)
    assert demoted(scorer) == {"g3-7"}


def test_observing_only_publishes_what_a_tier_would_be_and_changes_none() -> None:
    """Scores and reasons come as ever; no transition, not even for a hard fault."""
    scorer = Scorer(fleet(4), observe_only=1)
    windows(scorer, ["g0-0"])
    scorer.events({"kind": "xid", "gpu_uuid": "g1-0", "node": "n1", "code": 79}, at=5.5)
    assert set(scorer.scores["tier"]) == {"standard"}
    assert scorer.transitions.is_empty()
    texts = {gpu: scorer.row(gpu)["reasons"][-1]["text"] for gpu in ("g0-0", "g1-0")}
    assert texts == {"g0-0": "would be degraded: observing only", "g1-0": "would be quarantine: observing only"}
    assert scorer.row("g0-0")["speed"] < 0.95


def test_observing_only_never_shows_silence_as_health() -> None:
    """Stale is unknown in every mode."""
    scorer = Scorer(fleet(4), observe_only=1)
    windows(scorer)
    scorer.tick(at=20)
    assert set(scorer.scores["tier"]) == {"unknown"}


@pytest.mark.parametrize("tier", ["premium", "standard"])
def test_a_pin_to_a_good_tier_stands_against_soft_evidence_and_not_against_a_lost_gpu(tier: str) -> None:
    """The operator knows why it is slow; nobody can know that a GPU off the bus works."""
    scorer = Scorer(fleet(4))
    windows(scorer)
    scorer.events({"kind": "operator_pin", "gpu_uuid": "g0-0", "code": TIERS.index(tier)}, at=5)
    windows(scorer, ["g0-0"], first=5, count=8)
    assert scorer.tier("g0-0") == tier
    scorer.events({"kind": "gpu_lost", "gpu_uuid": "g0-0"}, at=13)
    assert scorer.tier("g0-0") == "quarantine"


def test_a_pin_to_a_bad_tier_is_the_best_that_a_gpu_can_have_until_it_is_cleared() -> None:
    """A person wants it out: a day later it still is; clearing takes the pin away."""
    scorer = Scorer(fleet(4))
    windows(scorer)
    scorer.events({"kind": "operator_pin", "gpu_uuid": "g0-0", "code": TIERS.index("quarantine")}, at=5)
    assert (scorer.tier("g0-0"), scorer.codes("g0-0")) == ("quarantine", ["operator_pin"])
    windows(scorer, first=2000, count=3)
    scorer.restart()
    windows(scorer, first=2003, count=1)
    assert scorer.tier("g0-0") == "quarantine"
    scorer.events({"kind": "operator_clear", "gpu_uuid": "g0-0"}, at=2004)
    assert scorer.tier("g0-0") == "standard"
    moves = scorer.transitions.filter(pl.col("gpu_uuid") == "g0-0")
    assert moves["to_tier"].to_list() == ["quarantine", "standard"]
    assert all(reasons != "[]" for reasons in moves["reasons"])


def test_a_hold_keeps_the_tier_as_it_is_against_soft_evidence() -> None:
    """No way down and no way up without an operator."""
    scorer = Scorer(fleet(4))
    windows(scorer, ["g0-0"])
    scorer.events(
        {"kind": "operator_hold", "gpu_uuid": "g0-0"}, {"kind": "operator_hold", "gpu_uuid": "g1-0", "node": "n1"}, at=5
    )
    before = scorer.tier("g0-0"), scorer.tier("g1-0")
    windows(scorer, ["g1-0"], first=5, count=30)
    assert before == ("degraded", "standard")
    assert (scorer.tier("g0-0"), scorer.tier("g1-0")) == before


def test_clearing_after_a_repair_forgets_the_verdict_and_its_evidence() -> None:
    """Even what asks for repair goes; a GPU that is still slow is found again, one that is not stays."""
    scorer = Scorer(fleet(4))
    windows(scorer, ["g0-0", "g1-0"])
    scorer.events({"kind": "xid", "gpu_uuid": "g0-1", "code": 64}, at=5)
    assert demoted(scorer) == {"g0-0", "g1-0", "g0-1"}
    scorer.events({"kind": "operator_clear"}, {"kind": "operator_clear", "node": "n1", "gpu_uuid": "g1-0"}, at=5.5)
    assert demoted(scorer) == set()
    windows(scorer, ["g1-0"], first=5, count=5)
    assert demoted(scorer) == {"g1-0"}


def test_a_lost_gpu_stays_in_quarantine_for_as_long_as_it_is_silent() -> None:
    """Two days of silence later it is still not one to be scheduled; its silent neighbour is unknown."""
    scorer = Scorer(fleet(4))
    windows(scorer)
    scorer.events({"kind": "gpu_lost", "gpu_uuid": "g0-0"}, at=5)
    scorer.tick(at=3000)
    assert (scorer.tier("g0-0"), scorer.tier("g0-1")) == ("quarantine", "unknown")


def test_a_new_gpu_in_the_slot_starts_anew() -> None:
    """The verdict belongs to the UUID, not to the slot."""
    scorer = Scorer(fleet(4))
    scorer.events({"kind": "xid", "gpu_uuid": "g0-0", "code": 79}, at=0.5)
    scorer.gpus = scorer.gpus.with_columns(pl.col("gpu_uuid").replace({"g0-0": "g0-new"}))
    windows(scorer, first=1)
    assert (scorer.tier("g0-0"), scorer.tier("g0-new")) == ("quarantine", "standard")


def test_an_operators_word_heard_twice_changes_nothing() -> None:
    """Events come at least once."""
    scorer = Scorer(fleet(4))
    windows(scorer, ["g0-0"])
    word = {"kind": "operator_clear", "gpu_uuid": "g0-0"}
    scorer.events(word, at=5)
    windows(scorer, ["g0-0"], first=5, count=5)
    told = len(scorer.transitions)
    scorer.events(word, at=5)
    assert (len(scorer.transitions), scorer.tier("g0-0")) == (told, "degraded")
