"""Tests of the window job over the memory transport; the state machine itself is in test_windows.py.

To add a case: messages through `Site.send`, then what must be on `isotach.windows`.
"""

import logging
from collections.abc import Iterator
from functools import partial

import orjson
import pytest
from support.fleet import SECOND, START, batch, encoded, gpu, outgoing, rows_batch
from support.jobs import Clock, Tail, dead_letter_rules, eventually, running, window_parts, window_rows

from streams import Committed, Outgoing, Producer, TopicPartition
from streams.counters import Counters
from streams.memory import MemoryTransport
from streams.parts import encode_window
from streams.topics import DEADLETTER, EVENTS, TELEMETRY, specs
from streams.window import GROUP, run_window_job
from telemetry.errors import TransportError


class Site:
    """A log with one or more partitions of telemetry, and the settings of a quick job over it."""

    def __init__(self, *, partitions: int = 1) -> None:
        self.clock = Clock(START + 3_600 * SECOND)
        self.transport = MemoryTransport(clock_ns=self.clock)
        self.transport.ensure_topics(specs(telemetry_partitions=partitions))
        self.producer: Producer = self.transport.producer(client_id="test")
        self.counters = Counters()

    def job(self, member: str = "w1", **settings: object) -> dict[str, object]:
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

    def windows_of(self, uuid: str) -> dict[int, int]:
        """Samples of a GPU by window, in seconds after START."""
        rows = window_rows(self.transport).filter(gpu_uuid=uuid)
        return {(start - START) // SECOND: n for start, n in rows.select("window_start_ns", "samples").iter_rows()}


@pytest.fixture
def site() -> Iterator[Site]:
    one = Site()
    yield one
    one.transport.close()


def test_windows_come_out_with_their_features(site: Site) -> None:
    """Two nodes for three minutes: the first two windows of all four GPUs, whole, told with their watermark."""
    site.send(*(outgoing(batch(node, first_s=first)) for first in range(0, 180, 10) for node in ("n1", "n2")))
    with running(run_window_job, site.transport, **site.job()):
        eventually(lambda: len(window_rows(site.transport)) >= 8, "two windows")
    rows = window_rows(site.transport)
    assert rows["samples"].to_list() == [60] * 8
    assert rows["completeness_ratio"].to_list() == [1.0] * 8
    assert rows.filter(window_start_ns=START + 60 * SECOND)["energy_j"].to_list() == [30_000.0] * 4
    parts = [part for part in window_parts(site.transport) if part.parts]
    assert [(part.part, part.parts, part.partition) for part in parts] == [(1, 1, 0)] * 2
    assert [part.watermark_ns for part in parts] == [START + 60 * SECOND, START + 120 * SECOND]


def test_a_restart_goes_on_without_a_gap(site: Site) -> None:
    """A job stopped in the middle of a window and started again counts every sample once, energy included."""
    messages = [outgoing(batch("n1", first_s=first)) for first in range(0, 300, 10)]
    for i in range(0, 30, 7):
        site.send(*messages[i : i + 7])
        with running(run_window_job, site.transport, **site.job()):
            done = (min(i + 7, 30) * 10 - 31) // 60
            eventually(lambda done=done: len(site.windows_of(gpu("n1", 0))) >= done, f"{done} windows")
    assert site.windows_of(gpu("n1", 0)) == {0: 60, 60: 60, 120: 60, 180: 60}
    energy = window_rows(site.transport).filter(gpu_uuid=gpu("n1", 0))["energy_j"].to_list()
    assert energy[1:] == [30_000.0] * 3


def test_an_undecodable_message_is_set_aside_once(site: Site) -> None:
    """Garbage and an unknown schema are in the dead-letter topic with place and rule; a restart does not loop."""
    good = encoded(batch("n1"))
    bad = [
        Outgoing(topic=TELEMETRY, key=b"n1", value=b"\xff\x00\x7b", headers=good.headers),
        Outgoing(topic=TELEMETRY, key=b"n1", value=good.value, headers={**good.headers, "schema": b"x/99;1"}),
        Outgoing(topic=TELEMETRY, key=b"n1", value=None, headers=good.headers),
        Outgoing(topic=TELEMETRY, key=b"n1", value=b"", headers=good.headers),
    ]
    site.send(outgoing(batch("n1")), *bad, outgoing(batch("n1", first_s=10)))
    for _ in range(2):
        with running(run_window_job, site.transport, **site.job()):
            eventually(lambda: len(dead_letter_rules(site.transport)) >= 4, "four dead letters")
            site.send(outgoing(batch("n1", first_s=100)))
            eventually(lambda: site.windows_of(gpu("n1", 0)).get(0) == 20, "the window")
    tail = Tail(site.transport, DEADLETTER)
    letters = eventually(tail.messages)
    tail.close()
    assert [(m.headers["rule"], m.headers["offset"], m.headers["topic"]) for m in letters] == [
        (b"not_zstd", b"1", TELEMETRY.encode()),
        (b"unknown_schema", b"2", TELEMETRY.encode()),
        (b"empty", b"3", TELEMETRY.encode()),
        (b"empty", b"4", TELEMETRY.encode()),
    ]
    assert letters[0].value == b"\xff\x00\x7b"
    assert letters[0].headers["node"] == b"n1"


def test_a_row_from_the_future_is_set_aside_and_reported_once(site: Site) -> None:
    """A node whose clock is a day ahead: its rows are dead letters, the node is reported once, nobody else suffers."""
    ahead = [outgoing(rows_batch("n2", [(0, 86_400 + second)])) for second in range(5)]
    honest = [outgoing(batch("n1", first_s=first)) for first in range(0, 180, 10)]
    site.send(*honest[:3], *ahead, *honest[3:])
    with running(run_window_job, site.transport, **site.job()):
        eventually(lambda: len(site.windows_of(gpu("n1", 0))) >= 2, "two windows")
    assert site.windows_of(gpu("n1", 0)) == {0: 60, 60: 60}
    assert dead_letter_rules(site.transport) == ["future"] * 5
    tail = Tail(site.transport, EVENTS, DEADLETTER)
    messages = eventually(tail.messages)
    tail.close()
    events = [orjson.loads(m.value or b"") for m in messages if m.topic == EVENTS]
    assert [(event["node"], event["kind"]) for event in events] == [("n2", "clock_skew")]
    row = orjson.loads(next(m for m in messages if m.topic == DEADLETTER).value or b"")
    assert (row["gpu_uuid"], row["time_ns"]) == (gpu("n2", 0), START + 86_400 * SECOND)
    assert site.counters.value("rejected", "future") == 5


def test_the_last_window_closes_when_the_stream_goes_quiet(site: Site) -> None:
    """Without any further message the last window comes out after the idle limit, and empty ones after it."""
    site.clock.now_ns = START + 51 * SECOND
    site.send(*(outgoing(batch("n1", first_s=first)) for first in range(0, 50, 10)))
    with running(run_window_job, site.transport, **site.job()):
        eventually(lambda: site.counters.value("rows") == 100, "the samples")
        site.clock.move(59)
        assert window_rows(site.transport).is_empty()
        for _ in range(3):
            site.clock.move(60)
            seen = len(window_parts(site.transport))
            eventually(lambda seen=seen: len(window_parts(site.transport)) > seen, "a window")
    assert site.windows_of(gpu("n1", 0)) == {0: 50}
    assert max(part.watermark_ns for part in window_parts(site.transport)) >= START + 120 * SECOND


def test_partitions_that_never_spoke_tell_progress() -> None:
    """Empty partitions hold no scorer back: they tell progress without opening windows."""
    site = Site(partitions=3)
    with running(run_window_job, site.transport, **site.job()):
        eventually(lambda: site.transport.partitions(TELEMETRY) == 3)
        eventually(lambda: site.clock.move(20) or len({p.partition for p in window_parts(site.transport)}) == 3)
    assert {part.parts for part in window_parts(site.transport)} == {0}
    site.transport.close()


def test_two_members_share_and_take_over() -> None:
    """Members come and go in the middle of windows; each window of each GPU is there, whole."""
    site = Site(partitions=4)
    nodes = [f"n{i}" for i in range(8)]

    def minute(index: int) -> list[Outgoing]:
        return [outgoing(batch(n, first_s=60 * index + s, gpus=1)) for s in range(0, 60, 10) for n in nodes]

    with running(run_window_job, site.transport, **site.job("w1")):
        site.send(*minute(0), *minute(1)[:20])
        with running(run_window_job, site.transport, **site.job("w2")):
            site.send(*minute(1)[20:], *minute(2)[:30])
            eventually(lambda: len(window_rows(site.transport)) >= 8, "the first window")
        site.send(*minute(2)[30:], *minute(3))
        eventually(lambda: len(window_rows(site.transport)) >= 24, "three windows")
    rows = window_rows(site.transport)
    assert rows["samples"].to_list() == [60] * len(rows)
    assert dead_letter_rules(site.transport) == []
    site.transport.close()


def test_a_late_commit_after_a_rebalance_is_dropped(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """A member put out of the group while it worked makes no trouble: its windows stand, the next one goes on."""
    transport = MemoryTransport(clock_ns=site.clock, session_timeout_s=0.2)
    transport.ensure_topics(specs(telemetry_partitions=1))
    producer = transport.producer(client_id="test")
    for first in range(0, 200, 10):
        producer.send(outgoing(batch("n1", first_s=first)))
    producer.flush()
    slow = transport.subscribe([TELEMETRY], group=GROUP, client_id="slow")
    slow.poll(timeout_s=1)
    slow.poll(timeout_s=1)
    caplog.set_level(logging.INFO)
    with running(run_window_job, transport, **site.job("w2")):
        eventually(lambda: len(window_rows(transport)) >= 4, "two windows by the next member")
        before = transport.committed(GROUP, [TopicPartition(TELEMETRY, 0)])
        slow.commit({TopicPartition(TELEMETRY, 0): Committed(1)})
        assert transport.committed(GROUP, [TopicPartition(TELEMETRY, 0)]) == before
    assert len(window_rows(transport)) == 4
    assert "late" in caplog.text
    slow.close()
    transport.close()


class Noting(Counters):
    """Counters that remember how many partitions were paused."""

    def __init__(self) -> None:
        super().__init__()
        self.paused: list[float] = []

    def set(self, name: str, value: float, label: str = "") -> None:
        if name == "paused":
            self.paused.append(value)
        super().set(name, value, label)


def test_too_many_open_rows_pause_partitions_and_lose_nothing() -> None:
    """With room for few rows the job pauses all partitions but one; every sample is in its window all the same."""
    site = Site(partitions=4)
    nodes = [f"n{i}" for i in range(4)]
    for first in range(0, 240, 10):
        site.send(*(outgoing(batch(n, first_s=first, gpus=1), partition=i) for i, n in enumerate(nodes)))
    site.counters = Noting()
    with running(run_window_job, site.transport, **site.job(max_open_rows=200)):
        eventually(lambda: len(window_rows(site.transport)) >= 12, "three windows of four GPUs")
    assert window_rows(site.transport)["samples"].to_list() == [60] * 12
    assert max(site.counters.paused) == 3
    site.transport.close()


class Broken(MemoryTransport):
    """A log whose producer fails from time to time, as one whose brokers restart."""

    failures = 0

    def producer(self, *, client_id: str) -> Producer:  # type: ignore[override]
        real = super().producer(client_id=client_id)
        outer = self

        class Failing:
            def send(self, message: Outgoing) -> None:
                real.send(message)

            def flush(self, *, timeout_s: float = 60.0) -> None:
                if outer.failures > 0:
                    outer.failures -= 1
                    raise TransportError("the broker is restarting")
                real.flush(timeout_s=timeout_s)

            def close(self) -> None:
                real.close()

        return Failing()


def test_a_log_that_fails_costs_time_and_no_sample() -> None:
    """A flush that fails thrice is tried again from the committed place; windows and dead letters are all there."""
    clock = Clock(START + 3_600 * SECOND)
    transport = Broken(clock_ns=clock)
    transport.ensure_topics(specs(telemetry_partitions=1))
    producer = MemoryTransport.producer(transport, client_id="test")
    for first in range(0, 200, 10):
        producer.send(outgoing(batch("n1", first_s=first)))
    producer.send(Outgoing(topic=TELEMETRY, key=b"n1", value=b"garbage"))
    producer.flush()
    transport.failures = 3
    counters = Counters()
    with running(
        run_window_job, transport, member="w", clock_ns=clock, poll_s=0.02, back_off_s=0.02, counters=counters
    ):
        eventually(lambda: len(window_rows(transport)) >= 4 and not transport.failures, "two windows")
        eventually(lambda: transport.committed(GROUP, [TopicPartition(TELEMETRY, 0)]), "a place")
    assert window_rows(transport)["samples"].to_list() == [60] * 4
    assert "unknown_content_type" in dead_letter_rules(transport)
    assert counters.value("retries", "window") == 3
    transport.close()


def test_large_windows_are_split_into_parts(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """No message on `isotach.windows` outgrows the limit; the parts together are the window."""
    monkeypatch.setattr("streams.window.encode_window", partial(encode_window, max_bytes=1_700))
    site.send(*(outgoing(batch(f"n{i}", first_s=first, gpus=8)) for first in (0, 100) for i in range(10)))
    with running(run_window_job, site.transport, **site.job()):
        eventually(lambda: len(window_rows(site.transport)) >= 80, "the window")
    parts = [part for part in window_parts(site.transport) if part.window_start_ns == START]
    assert len(parts) == parts[0].parts > 1
    assert [part.watermark_ns for part in parts] == [START] * (len(parts) - 1) + [START + 60 * SECOND]
