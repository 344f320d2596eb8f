"""Which job each GPU worked for, as nodes told it in snapshots.

To add a case: snapshots through `told`, then `during` or `places`.
"""

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fleet import SECOND, START

from streams import Committed, Message, TopicPartition
from streams.running_jobs import KNOWN_FOR_S, RunningJobs
from streams.topics import JOBS

MINUTE = 60 * SECOND
TP = TopicPartition(JOBS, 0)


def job(name: str, gpu: str = "GPU-0", *, started: float = 0, **columns: Any) -> dict[str, Any]:
    """Started this many minutes after START."""
    return {"gpu_uuid": gpu, "job_id": name, "source": "slurm", "started_ns": START + round(started * MINUTE)} | columns


def told(at: float, *jobs: dict[str, Any], node: str = "n0", offset: int = 0) -> Message:
    """A snapshot of a node this many minutes after START."""
    seen = START + round(at * MINUTE)
    return Message(
        topic=JOBS, partition=0, offset=offset, time_ns=seen, key=node.encode(), headers={},
        value=orjson.dumps({"node": node, "seen_ns": seen, "jobs": jobs}),
    )  # fmt: skip


def known(*messages: Message) -> RunningJobs:
    one = RunningJobs(max_skew_ns=60 * SECOND)
    assert not one.take(messages)
    return one


def names(one: RunningJobs, at: float) -> list[str]:
    """The jobs of the window of one minute that begins there."""
    start = START + round(at * MINUTE)
    return sorted(one.during(start, start + MINUTE)["job_id"].to_list())


@pytest.mark.parametrize(
    ("started", "ended", "counts"), [(0.0, 1.0, True), (0.5, 1.0, True), (0.6, 1.0, False), (0.0, 0.4, False)]
)
def test_a_job_counts_for_a_window_that_it_filled_half_of(started: float, ended: float, counts: bool) -> None:
    """Whoever came or went in the middle leaves the window to the one who had most of it, or to nobody."""
    one = known(told(ended, job("a", started=started, ended=True)))
    assert names(one, 0) == (["a"] if counts else [])


def test_a_job_that_is_no_longer_named_has_ended() -> None:
    """An empty snapshot ends the node's jobs, and another node's stay."""
    one = known(told(1, job("a")), told(1, job("b", "GPU-9"), node="n1", offset=1), told(5, offset=2))
    assert names(one, 4) == ["a", "b"]
    assert names(one, 6) == ["b"]


def test_a_job_that_nobody_tells_of_any_more_is_not_believed_for_ever() -> None:
    """Twice the time after which it would have been told again; then neither it nor its place is kept."""
    one = known(told(1, job("a"), offset=7))
    last = 1 + KNOWN_FOR_S / 60 - 1
    assert names(one, last) == ["a"]
    assert one.places({TP: 9}) == {TP: Committed(7)}
    assert names(one, last + 2) == []
    assert one.places({TP: 9}) == {TP: Committed(9)}


def test_a_job_that_its_source_lost_sight_of_is_believed_from_when_it_was_seen() -> None:
    """Told again and again with the same `seen_ns`: it runs for as long as if it had not been told again."""
    lost = job("a", seen_ns=START + MINUTE)
    one = known(told(1, job("a")), told(16, lost, offset=1), told(31, lost, job("b", "GPU-1"), offset=2))
    last = 1 + KNOWN_FOR_S / 60 - 1
    assert names(one, last) == ["a", "b"]
    assert names(one, last + 2) == ["b"]


def test_what_is_no_snapshot_or_from_the_future_is_refused_and_changes_nothing() -> None:
    """Nonsense, and a node whose clock is an hour ahead."""
    one = known(told(1, job("a")))
    ahead = told(60, offset=1)
    early = Message(**({name: getattr(ahead, name) for name in ahead.__slots__} | {"time_ns": START}))
    with_job = told(60, job("b"), offset=2)
    also = Message(**({name: getattr(with_job, name) for name in with_job.__slots__} | {"time_ns": START}))
    nonsense = Message(topic=JOBS, partition=0, offset=3, time_ns=START, key=b"n0", headers={}, value=b"[]")
    rules = [rejected.rule for rejected in one.take([also, nonsense])]
    assert sorted(rules) == ["future", "not_an_object"]
    assert names(one, 1) == ["a"]
    one.take([early])  # says nothing but that there are none: the log's time counts, before the snapshot of `a`
    assert names(one, 0) == []


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_restart_from_the_place_knows_the_same(data: st.DataObject) -> None:
    """Snapshots in any order of nodes, windows in between, a restart anywhere: the same jobs from then on."""
    log, at = [], 0.0
    for offset in range(data.draw(st.integers(1, 12))):
        at += data.draw(st.sampled_from([0.5, 1, 15, 40]))
        running = data.draw(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 1)), max_size=3, unique=True))
        rows = [job(name, f"GPU-{gpu}", ended=data.draw(st.booleans())) for name, gpu in running]
        log.append((at, told(at, *rows, node=data.draw(st.sampled_from(["n0", "n1"])), offset=offset)))
    stop = data.draw(st.integers(0, len(log)))
    whole = RunningJobs(max_skew_ns=0)
    for when, one in log[:stop]:
        whole.take([one])
        names(whole, when - 1)
    place = whole.places({TP: stop})[TP].offset
    again = RunningJobs(max_skew_ns=0)
    again.take([one for _, one in log[place:stop]])
    for when, one in [*log[stop:], (at + 30, None)]:
        if one is not None:
            whole.take([one])
            again.take([one])
        assert names(whole, when - 1) == names(again, when - 1)
