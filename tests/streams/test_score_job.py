"""Tests of the score job over the memory transport, with the real scoring.

To add a case: window messages through `Site.window`, then what must be on `isotach.scores` and `isotach.transitions`.
"""

from collections.abc import Iterator
from typing import Any

import orjson
import polars as pl
import pytest
from support.jobs import Clock, Tail, dead_letter_rules, eventually, running
from support.samples import START_NS as START
from support.samples import WINDOW_NS, windows

from streams import Committed, Message, Outgoing, TopicPartition
from streams.counters import Counters
from streams.memory import MemoryTransport
from streams.open_windows import OpenWindows, parse_place
from streams.parts import Part, decode_part, encode_progress, encode_window
from streams.score import GROUP, TRANSACTIONAL_ID, run_score_job
from streams.topics import EVENTS, INVENTORY, JOBS, MEASUREMENTS, SCORES, TRANSITIONS, WINDOWS, specs
from telemetry.errors import Fenced

SECOND = 1_000_000_000
PARTITIONS = 2
TP = TopicPartition(WINDOWS, 0)


def rows(gpus: range, *, at: int) -> pl.DataFrame:
    """Window rows of some GPUs, eight a node, all busy and alike."""
    return windows([{"gpu_uuid": f"GPU-{i:03d}", "node": f"n{i // 8}", "slot": i % 8} for i in gpus], at=at)


class Site:
    """A log with two telemetry partitions and what the score job makes of it."""

    def __init__(self) -> None:
        self.clock = Clock(START + 30 * WINDOW_NS)
        self.transport = MemoryTransport(clock_ns=self.clock, session_timeout_s=5)
        self.transport.ensure_topics(specs(telemetry_partitions=PARTITIONS))
        self.producer = self.transport.producer(client_id="test")
        self.counters = Counters()
        self.tail = Tail(self.transport, SCORES, TRANSITIONS)

    def job(self, member: str = "s1", **settings: Any) -> dict[str, Any]:
        known = {
            "member": member,
            "clock_ns": self.clock,
            "poll_s": 0.02,
            "back_off_s": 0.05,
            "counters": self.counters,
        }
        return known | settings

    def send(self, *messages: Outgoing) -> None:
        for message in messages:
            self.producer.send(message)
        self.producer.flush()

    def window(self, at: int, gpus: range, *, partition: int = 0) -> None:
        """One partition's part of a window, in one message."""
        start = START + at * WINDOW_NS
        self.send(
            *encode_window(partition=partition, window_start_ns=start, window_ns=WINDOW_NS, rows=rows(gpus, at=at))
        )

    def whole(self, at: int) -> None:
        """A window of sixteen GPUs in two partitions."""
        self.window(at, range(8), partition=0)
        self.window(at, range(8, 16), partition=1)

    def scores(self) -> dict[str, dict[str, Any]]:
        """The newest score of each GPU."""
        messages = [message for message in self.tail.messages() if message.topic == SCORES]
        return {(m.key or b"").decode(): orjson.loads(m.value or b"null") for m in messages}

    def transitions(self) -> list[dict[str, Any]]:
        """All transitions."""
        return [orjson.loads(m.value or b"") for m in self.tail.messages() if m.topic == TRANSITIONS]

    def place(self) -> Committed | None:
        return self.transport.committed(GROUP, [TP]).get(TP)

    def applied(self) -> int | None:
        """The last window scored, counted from START."""
        applied, _ = parse_place(self.place())
        return None if applied is None else (applied - START) // WINDOW_NS


@pytest.fixture
def site() -> Iterator[Site]:
    one = Site()
    yield one
    one.tail.close()
    one.transport.close()


def event(kind: str, uuid: str, *, code: int = 0, time_ns: int = START + 10 * WINDOW_NS) -> Outgoing:
    value = {"time_ns": time_ns, "node": "n0", "gpu_uuid": uuid, "kind": kind, "code": code}
    return Outgoing(topic=EVENTS, key=uuid.encode(), value=orjson.dumps(value))


def test_a_window_is_scored_when_all_partitions_have_told_it(site: Site) -> None:
    """Not before: the first half waits for the second one."""
    with running(run_score_job, site.transport, **site.job()):
        site.window(0, range(8), partition=0)
        eventually(lambda: site.counters.value("scorer_active"), "an election")
        site.window(0, range(8, 16), partition=1)
        eventually(lambda: len(site.scores()) == 16, "sixteen scores")
    assert site.counters.value("scored_windows", "yes") == 1
    assert site.counters.value("scored_windows", "no") == 0
    assert site.counters.value("scorer_active") == 0


def test_a_window_waits_no_longer_than_the_grace_time(site: Site) -> None:
    """One partition that says nothing delays the others by the grace time, and the window is marked incomplete."""
    with running(run_score_job, site.transport, **site.job(grace_s=90)):
        site.window(0, range(8), partition=0)
        eventually(lambda: site.clock.move(5) or len(site.scores()) == 8, "eight scores")
    assert site.counters.value("scored_windows", "no") == 1
    assert site.clock.now_ns >= START + 30 * WINDOW_NS + 90 * SECOND


def test_a_restart_goes_on_where_it_was(site: Site) -> None:
    """A scorer that takes over from the log gives the rows that one which never stopped gives."""
    other = Site()
    with running(run_score_job, other.transport, **other.job()):
        for at in range(8):
            other.whole(at)
        eventually(lambda: other.applied() == 7, "eight windows")
    for at in range(8):
        site.whole(at)
        if at % 3 == 2 or at == 7:
            with running(run_score_job, site.transport, **site.job()):
                eventually(lambda at=at: site.applied() == at, "the windows")
    assert site.scores() == other.scores()
    assert site.transitions() == other.transitions()
    other.tail.close()
    other.transport.close()


def test_places_cover_windows_that_are_not_scored_yet(site: Site) -> None:
    """The half of a window that came before the others' whole ones is read again by the next scorer."""
    site.window(1, range(8), partition=0)
    site.whole(0)
    with running(run_score_job, site.transport, **site.job()):
        eventually(lambda: site.applied() == 0, "window 0")
    assert (site.place() or Committed(-1)).offset == 0
    with running(run_score_job, site.transport, **site.job("s2")):
        site.window(1, range(8, 16), partition=1)
        eventually(lambda: site.applied() == 1, "window 1")
    assert site.counters.value("scored_windows", "yes") == 2


def test_windows_that_come_again_change_nothing(site: Site) -> None:
    """A window job that publishes a window twice, or a stale one, leaves scores and transitions as they were."""
    with running(run_score_job, site.transport, **site.job()):
        site.whole(0)
        site.whole(1)
        eventually(lambda: site.applied() == 1, "two windows")
        before, moved = site.scores(), site.transitions()
        site.whole(0)
        site.whole(1)
        eventually(lambda: site.counters.value("stale_windows") == 4, "stale windows")
    assert (site.scores(), site.transitions()) == (before, moved)


def test_two_halves_of_a_gpu_are_one_window(site: Site) -> None:
    """A GPU in two partitions, after a mix of partitioners, has one window with the samples of both halves."""
    halves = [rows(range(1), at=0).with_columns(samples=pl.lit(n, pl.UInt32)) for n in (25, 35)]
    told = OpenWindows(grace_ns=0)
    for partition, half in enumerate(halves):
        (message,) = encode_window(partition=partition, window_start_ns=START, window_ns=WINDOW_NS, rows=half)
        told.add(decode_part(_read(message)), offset=partition, now_ns=0)
    due = told.due(partitions=2, now_ns=0)
    assert due is not None
    assert due.complete
    assert due.rows["samples"].to_list() == [60]


def _read(message: Outgoing) -> Message:
    return Message(
        topic=message.topic,
        partition=0,
        offset=0,
        time_ns=START + WINDOW_NS,
        key=None,
        headers=message.headers,
        value=message.value,
    )


def test_a_part_that_is_missing_keeps_its_window_open() -> None:
    """Only the last part tells the window's end."""
    parts = list(
        encode_window(
            partition=0, window_start_ns=START, window_ns=WINDOW_NS, rows=rows(range(400), at=0), max_bytes=2_000
        )
    )
    assert len(parts) > 1
    told = OpenWindows(grace_ns=WINDOW_NS)
    for i, message in enumerate(parts):
        assert told.due(partitions=1, now_ns=0) is None
        told.add(decode_part(_read(message)), offset=i, now_ns=0)
    due = told.due(partitions=1, now_ns=0)
    assert due is not None
    assert len(due.rows) == 400


def test_progress_opens_no_window() -> None:
    """A partition that never had a sample lets windows of others close, and makes none of its own."""
    told = OpenWindows(grace_ns=WINDOW_NS)
    message = _read(encode_progress(partition=1, window_ns=WINDOW_NS, watermark_ns=START + 5 * WINDOW_NS))
    told.add(decode_part(message), offset=0, now_ns=0)
    assert told.due(partitions=2, now_ns=10 * WINDOW_NS) is None
    (whole,) = encode_window(partition=0, window_start_ns=START, window_ns=WINDOW_NS, rows=rows(range(2), at=0))
    told.add(decode_part(_read(whole)), offset=1, now_ns=0)
    due = told.due(partitions=2, now_ns=0)
    assert due is not None
    assert due.complete


def test_what_partitions_told_survives_a_takeover() -> None:
    """Progress goes with the place; with more partitions than a place can hold it is told again instead."""
    told = OpenWindows(grace_ns=0)
    for partition in range(200):
        told.add(
            Part(
                partition=partition,
                window_start_ns=START,
                window_ns=WINDOW_NS,
                watermark_ns=START + partition * WINDOW_NS,
                part=0,
                parts=0,
                rows=pl.DataFrame(),
            ),
            offset=partition,
            now_ns=0,
        )
    told.done(START)
    place = told.place(7)
    assert parse_place(place) == (START, {p: START + p * WINDOW_NS for p in range(200)})
    assert place.offset == 7
    assert len(place.metadata) < 4_096
    for metadata in ("", "{", "[]", '{"told": 3}', '{"told": {"x": 1}, "base": 0}', "null"):
        assert parse_place(Committed(3, metadata)) == (None, {})


def test_a_hard_event_is_scored_at_once(site: Site) -> None:
    """A GPU that fell off the bus is in quarantine without any window being closed after it."""
    with running(run_score_job, site.transport, **site.job()):
        for at in range(3):
            site.whole(at)
        eventually(lambda: site.applied() == 2, "three windows")
        site.send(event("xid", "GPU-003", code=79, time_ns=START + 3 * WINDOW_NS))
        eventually(lambda: site.scores()["GPU-003"]["tier"] == "quarantine", "a quarantine")
        assert site.scores()["GPU-004"]["tier"] != "quarantine"
    assert site.transport.committed(GROUP, [TopicPartition(EVENTS, 0)])[TopicPartition(EVENTS, 0)].offset == 1


def test_bad_events_stop_nothing(site: Site) -> None:
    """Garbage among events is skipped and counted; an event from the future is set aside."""
    bad = [
        Outgoing(topic=EVENTS, key=b"x", value=value)
        for value in (b"", None, b"\xff", b"[]", b"{}", b'{"time_ns": "x"}', b"[" * 5_000)
    ]
    measured = {
        "time_ns": START,
        "scope": "rack",
        "subject": "r",
        "name": "x",
        "workload_class": "compute",
        "value": 1.0,
    }
    with running(run_score_job, site.transport, **site.job()):
        for at in range(2):
            site.whole(at)
        eventually(lambda: site.applied() == 1, "two windows")
        site.send(*bad, Outgoing(topic=MEASUREMENTS, key=b"x", value=orjson.dumps(measured)))
        site.send(Outgoing(topic=WINDOWS, key=None, value=b"junk"), Outgoing(topic=WINDOWS, key=None, value=None))
        site.send(Outgoing(topic=INVENTORY, key=b"n0", value=b"{"))
        site.send(event("xid", "GPU-001", code=79, time_ns=START + 4_000 * WINDOW_NS))
        site.send(event("xid", "GPU-002", code=79, time_ns=START + 2 * WINDOW_NS))
        eventually(lambda: site.scores()["GPU-002"]["tier"] == "quarantine", "a quarantine")
        eventually(
            lambda: sum(site.counters.value("skipped", t) for t in (EVENTS, MEASUREMENTS, WINDOWS, INVENTORY)) == 11
        )
    assert site.scores()["GPU-001"]["tier"] != "quarantine"
    assert dead_letter_rules(site.transport) == ["future"]


def test_a_window_of_the_far_future_does_not_stop_the_scorer(site: Site) -> None:
    """A window stamped years ahead is skipped: it would make every real one stale."""
    with running(run_score_job, site.transport, **site.job()):
        site.window(50_000, range(8), partition=0)
        site.window(50_000, range(8), partition=1)
        site.whole(0)
        eventually(lambda: len(site.scores()) == 16, "scores")
    assert site.counters.value("skipped", WINDOWS) == 2


def test_gpus_that_say_nothing_become_unknown(site: Site) -> None:
    """Empty windows, as a silent stream makes them, turn every GPU unknown."""
    with running(run_score_job, site.transport, **site.job()):
        for at in range(3):
            site.whole(at)
        eventually(lambda: site.applied() == 2, "three windows")
        assert {score["tier"] for score in site.scores().values()} != {"unknown"}
        for at in range(3, 12):
            site.window(at, range(0), partition=0)
            site.window(at, range(0), partition=1)
        eventually(lambda: {score["tier"] for score in site.scores().values()} == {"unknown"}, "unknown tiers")


def test_nobody_is_unknown_because_windows_are_made_up_for(site: Site) -> None:
    """After a pause of the scorer a new event is heard before the old windows: they do not look silent for that."""
    with running(run_score_job, site.transport, **site.job()):
        for at in range(3):
            site.whole(at)
        eventually(lambda: site.applied() == 2, "the first windows")
    for at in range(3, 12):
        site.whole(at)
    site.send(event("xid", "GPU-003", code=31, time_ns=START + 20 * WINDOW_NS))
    with running(run_score_job, site.transport, **site.job()):
        eventually(lambda: site.applied() == 11, "the windows of the pause")
    assert "unknown" not in {change["to_tier"] for change in site.transitions()}
    assert "unknown" not in {score["tier"] for score in site.scores().values()}


def test_empty_windows_of_an_empty_fleet_are_not_scored(site: Site) -> None:
    """Before anything was ever seen, empty windows move nothing: a recording of last month can still be scored."""
    with running(run_score_job, site.transport, **site.job()):
        site.window(20, range(0), partition=0)
        site.window(20, range(0), partition=1)
        eventually(lambda: site.place(), "a place")
        assert site.applied() is None
        site.whole(3)
        eventually(lambda: site.applied() == 3, "the older window scored")


def test_a_predecessor_is_fenced(site: Site) -> None:
    """A producer of the same id that wakes up after the election can write nothing."""
    old = site.transport.transactional_producer(transactional_id=TRANSACTIONAL_ID)
    zombie = site.transport.subscribe([WINDOWS], group=GROUP, client_id="zombie")
    zombie.close()
    with running(run_score_job, site.transport, **site.job()):
        site.whole(0)
        eventually(lambda: len(site.scores()) == 16, "scores")
        count = len(site.tail.messages())
        with pytest.raises(Fenced):
            old.publish(
                [Outgoing(topic=SCORES, key=b"GPU-000", value=b"{}")],
                group=GROUP,
                places={TP: Committed(0)},
                source=zombie,
            )
        assert len(site.tail.messages()) == count


def test_a_fenced_scorer_stands_by_and_comes_back(site: Site) -> None:
    """Replaced by a newer producer it drops everything, then is elected again with nothing lost."""
    with running(run_score_job, site.transport, **site.job()):
        site.whole(0)
        eventually(lambda: site.applied() == 0, "window 0")
        site.transport.transactional_producer(transactional_id=TRANSACTIONAL_ID)
        site.whole(1)
        eventually(lambda: site.applied() == 1, "window 1")
    assert site.counters.value("retries", "score") == 1


def test_a_standby_takes_over(site: Site) -> None:
    """Of two members one scores; when it leaves the other goes on with the same state."""
    with running(run_score_job, site.transport, **site.job("s1")) as first:
        eventually(lambda: site.counters.value("scorer_active"), "an election")
        with running(run_score_job, site.transport, **site.job("s2")):
            site.whole(0)
            eventually(lambda: site.applied() == 0, "window 0")
            first.stop.set()
            site.whole(1)
            eventually(lambda: site.applied() == 1, "window 1")
    assert len(site.scores()) == 16
    ids = [one["transition_id"] for one in site.transitions()]
    assert len(ids) == len(set(ids))


def test_progress_alone_moves_the_place_too(site: Site) -> None:
    """Progress told by quiet partitions is committed although nothing is scored: a restart does not read it again."""
    site.send(
        *[encode_progress(partition=0, window_ns=WINDOW_NS, watermark_ns=START + i * WINDOW_NS) for i in range(3)]
    )
    with running(run_score_job, site.transport, **site.job()):
        eventually(lambda: site.transport.committed(GROUP, [TP]).get(TP, Committed(0)).offset == 3, "a place")
    assert site.scores() == {}


def test_a_job_keeps_its_class_through_a_restart(site: Site) -> None:
    """Windows look like compute and their job says memory; each scorer knows it from the place where it reads on."""
    seen = START
    told = [
        {"gpu_uuid": f"GPU-{i:03d}", "job_id": "7", "source": "slurm", "started_ns": seen, "workload_class": "memory"}
        for i in range(8)
    ]
    value = orjson.dumps({"node": "n0", "seen_ns": seen, "jobs": told})
    site.clock.now_ns = START
    site.send(Outgoing(topic=JOBS, key=b"n0", value=value))
    site.clock.now_ns = START + 30 * WINDOW_NS
    jobs = TopicPartition(JOBS, 0)
    for at in range(8):
        if at % 4 == 0:
            site.send(Outgoing(topic=JOBS, key=b"n1", value=orjson.dumps({"node": "n1", "seen_ns": seen, "jobs": []})))
        site.whole(at)
        with running(run_score_job, site.transport, **site.job()):
            eventually(lambda at=at: site.applied() == at, "the window")
        assert site.transport.committed(GROUP, [jobs])[jobs].offset == 0
    found = {uuid: row["workload_class"] for uuid, row in site.scores().items()}
    assert found == {f"GPU-{i:03d}": "memory" if i < 8 else "compute" for i in range(16)}
