"""Peer groups found: two kinds of board under one name, and what must not be taken for one.

To add a case: a fleet, what slows part of it, and whether that part is a kind of its own.
"""

from typing import Any

import numpy as np
import polars as pl
import pytest
from support.scorer import Scorer, fleet

from analytics.kinds import EVERY, LOOKS, SUFFIX

NODES, SLOTS = 10, 4
LONG = EVERY * LOOKS  #: windows until a split


def play(
    slower: range, *, by: float = 0.9, since: int = 0, windows: int = LONG + 1, restart: frozenset[int] = frozenset(),
    **changed: Any,
) -> Scorer:  # fmt: skip
    """A fleet whose nodes `slower` have lower clocks since a window, with other readings `changed` beside."""
    rng = np.random.default_rng(0)
    scorer = Scorer(fleet(NODES, SLOTS), breaker_ratio=1.0)
    for at in range(windows):
        rows = []
        for gpu, node, slot in scorer.gpus.select("gpu_uuid", "node", "slot").iter_rows():
            slow = int(node[1:]) in slower and at >= since
            clock = 1400.0 * (1 + rng.normal(0, 0.004)) * (by if slow else 1.0)
            known = {"gpu_uuid": gpu, "node": node, "effective_clock_mhz": clock, "temperature_c": 60.0 + slot}
            rows.append(known | (changed if slow else {}))
        scorer.window(rows, at=at)
        if at in restart:
            scorer.restart()
    return scorer


def slower_kind(scorer: Scorer) -> set[str]:
    """Nodes whose GPUs are published in a group of their own."""
    return set(scorer.scores.filter(pl.col("peer_group").str.ends_with(SUFFIX))["node"])


def test_two_kinds_of_board_are_split_and_then_both_are_typical() -> None:
    """Four nodes of ten, a tenth slower from the first day: a group of their own after an hour, and nobody is slow."""
    scorer = play(range(4), windows=LONG + 20)
    assert slower_kind(scorer) == {"n0", "n1", "n2", "n3"}
    assert scorer.scores["speed"].to_list() == pytest.approx([1.0] * NODES * SLOTS, abs=0.01)
    assert not scorer.scores["tier"].is_in(["degraded", "quarantine"]).any()


def test_a_restart_anywhere_gives_the_same_groups_and_transitions() -> None:
    """What is found is in the published state."""
    straight = play(range(4), windows=LONG + 6)
    broken = play(range(4), windows=LONG + 6, restart=frozenset({11, 35, LONG - 10, LONG, LONG + 2}))
    assert broken.scores.equals(straight.scores)
    assert broken.transitions.equals(straight.transitions)


@pytest.mark.parametrize(
    ("slower", "options"),
    [
        pytest.param(range(1), {}, id="a handful: four slow GPUs of forty"),
        pytest.param(range(4), {"since": 25}, id="they were as fast as the others before"),
        pytest.param(range(4), {"temperature_c": 80.0}, id="they are hot"),
        pytest.param(range(4), {"tensor_active_ratio": 0.7}, id="they do other work"),
        pytest.param(range(4), {"tensor_active_ratio": None, "sm_active_ratio": None}, id="what they do is not known"),
        pytest.param(range(4), {"hw_thermal_ratio": 0.5}, id="heat slows them"),
        pytest.param(range(4), {"by": 0.99}, id="they are 1 % slower"),
    ],
)
def test_slow_gpus_are_no_kind(slower: range, options: dict[str, Any]) -> None:
    """A fault of many must not become typical among themselves."""
    assert slower_kind(play(slower, **options)) == set()


def test_kinds_that_are_alike_again_are_joined() -> None:
    """As after a change of firmware: LOOKS looks later there is one group."""
    scorer = play(range(4), windows=LONG + 1)
    assert slower_kind(scorer)
    rng = np.random.default_rng(1)
    for at in range(LONG + 1, 2 * LONG + 12):
        rows = [
            {"gpu_uuid": gpu, "node": node, "effective_clock_mhz": 1400.0 * (1 + rng.normal(0, 0.004))}
            for gpu, node in scorer.gpus.select("gpu_uuid", "node").iter_rows()
        ]
        scorer.window(rows, at=at)
    assert slower_kind(scorer) == set()
