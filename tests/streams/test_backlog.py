"""Tests of what follows a gap in the log: nodes come back one after another, and what they kept counts.

To add a case: another order in which nodes come back; `came` says what each message holds and when the log took it.
"""

import pytest
from support.fleet import SECOND, START, message, rows_batch
from support.window_machine import Machine, same

from streams import Message
from streams.backlog import LONGEST

LATENESS_S = 5


def came(*told: tuple[str, float, float, float]) -> list[Message]:
    """One message each: its node, when the log took it in, its first second and the one after its last."""
    return [
        message(
            rows_batch(node, [(0, first + i) for i in range(round(last - first))], value=float(first)),
            offset=offset,
            time_ns=START + round(at * SECOND),
        )
        for offset, (node, at, first, last) in enumerate(told)
    ]


def before(*nodes: str) -> list[tuple[str, float, float, float]]:
    """Half a minute as it should be: every node sends each five seconds."""
    return [(node, at, at - 5, at) for at in (5, 10, 15, 20, 25, 30) for node in nodes]


def outage() -> list[Message]:
    """Two minutes without a log; then `a` sends what it kept, and `b` and `c` when their own next try is due."""
    kept = [(start, min(start + 40, 150)) for start in range(30, 150, 40)]
    back = [("a", 150.0, *part) for part in kept]
    back += [("b", 153.0, *part) for part in kept]
    back += [("a", 154.0, 150, 154), ("c", 154.5, *kept[0]), ("a", 155.0, 154, 155), ("c", 155.5, *kept[1])]
    back += [("c", 156.0, *kept[2]), ("b", 157.0, 150, 157), ("c", 158.0, 150, 158)]
    on = [(node, at, at - 5, at) for at in (165.0, 170.0, 175.0, 180.0, 185.0) for node in "abc"]
    return came(*before("a", "b", "c"), *back, *on)


def test_nodes_that_come_back_one_after_another_lose_nothing() -> None:
    """Every sample that was kept through the outage is in its window."""
    machine = Machine()
    machine.add(outage())
    assert machine.refused == []
    full = {start: len(rows.filter(~rows["carry"])) for start, rows in machine.published.items()}
    assert [full[START + at * SECOND] for at in range(30, 150, 10)] == [3 * 10] * 12


@pytest.mark.parametrize("stop", range(18, 34))
def test_a_restart_while_waiting_waits_on(stop: int) -> None:
    """The job crashes after any message of the way back: the same windows, and nothing refused."""
    log = outage()
    whole, broken = Machine(), Machine()
    whole.add(log)
    for one in log[:stop]:
        broken.add([one])
        broken.commit()
    offset = broken.crash()
    broken.add(log[offset:])
    assert broken.refused == []
    same(whole, broken)


def test_a_node_that_stays_away_holds_nobody_up_for_longer_than_the_lateness() -> None:
    """`b` does not come back: windows close again after one lateness, and what it brings later is late."""
    machine = Machine()
    gone = 100.0
    back = [("a", gone + at, 30 if not at else gone + at - 1, gone + at) for at in range(6)]
    machine.add(came(*before("a", "b"), *back))
    assert max(machine.starts()) == 10  # still waiting: 25 s, the last of `b`, less the lateness
    log = came(*before("a", "b"), *back, ("a", gone + 6, gone + 5, gone + 6), ("b", gone + 7, 30, 60))
    machine.add(log[-2:])
    assert max(machine.starts()) == 90
    assert {rule for _, rule, _ in machine.refused} == {"late"}
    assert len(machine.refused) == 30


def test_nodes_that_never_catch_up_hold_nobody_up_for_ever() -> None:
    """`b` keeps sending old samples: after three times the lateness the windows go on without it."""
    machine = Machine()
    gone, log = 100.0, before("a", "b")
    for at in range(LONGEST * LATENESS_S + 2):
        log.append(("a", gone + at, gone + at - 1, gone + at))
        log.append(("b", gone + at, 30 + at, 31 + at))
    machine.add(came(*log))
    assert max(machine.starts()) == 100
    assert [rule for _, rule, _ in machine.refused] == ["late"]


def test_without_a_gap_nobody_is_waited_for() -> None:
    """A node alone that falls behind is late, as ever: the fleet does not wait for one."""
    machine = Machine()
    log = before("a", "b") + [("a", at, at - 1, at) for at in range(31, 60)]
    machine.add(came(*log, ("b", 60.0, 30, 40)))
    assert [rule for _, rule, _ in machine.refused] == ["late"] * 10


def test_a_node_that_was_behind_before_the_gap_is_not_waited_for() -> None:
    """`old` sends a recording: its samples were never fresh, so nobody waits until they are."""
    machine = Machine()
    log = before("a")
    log += [("old", at + 0.5, -1000 + at, -995 + at) for at in (26, 28)]
    machine.add(came(*log, ("a", 100.0, 30, 100), ("a", 101.0, 100, 101)))
    assert max(machine.starts()) == 80
