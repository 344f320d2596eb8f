"""The spool: what was queued is in the log or on disk or counted, whatever ends first."""

import itertools
import logging
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from support.recording import START_NS, Flaky, Scripted, batch, rows_of

from collectors import Reading
from collectors.agent import Agent
from collectors.outbox import BACKLOG_S, Outbox
from collectors.spool import FILE, Spool, Waiting
from streams import Outgoing
from streams.topics import EVENTS, TELEMETRY
from telemetry.errors import SettingsError

MIB = 1 << 20
SECOND = 10**9


def message(number: int, *, topic: str = TELEMETRY, size: int = 1000) -> Outgoing:
    headers = {"content-type": b"x", "odd": bytes(range(256))}
    return Outgoing(topic=topic, key=b"n1", value=number.to_bytes(4, "big") + bytes(size - 4), headers=headers)


def waiting(number: int, **more: object) -> Waiting:
    return Waiting(message=message(number, **more), samples=10, made_ns=number)  # type: ignore[arg-type]


def number_of(sent: Outgoing) -> int:
    return int.from_bytes((sent.value or b"")[:4], "big")


def all_of(spool: Spool) -> list[Waiting]:
    return list(iter(spool.take, None))


@contextmanager
def opened(folder: Path, *, max_bytes: int = 64 * MIB) -> Iterator[Spool]:
    spool = Spool(folder, max_bytes=max_bytes)
    try:
        yield spool
    finally:
        spool.close()


def until(done: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not done():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


# --- the file ----------------------------------------------------------------------------------------------------


def test_a_message_comes_back_as_it_was(tmp_path: Path) -> None:
    """Topic, key, headers, value, samples and time; no key and no value are not empty ones."""
    bare = Outgoing(topic=EVENTS, key=None, value=None)
    with opened(tmp_path / "made" / "here") as spool:
        spool.add([waiting(7), Waiting(message=bare, samples=0, made_ns=3)])
    with opened(tmp_path / "made" / "here") as spool:
        assert (spool.messages, spool.samples) == (2, 10)
        first, second = all_of(spool)
    assert (first.message, first.samples, first.made_ns) == (bare, 0, 3)
    assert (second.message, second.samples, second.made_ns) == (message(7), 10, 7)


@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["add", "event", "take", "send", "settle", "drop", "reopen"]), st.integers(1, 3)),
        max_size=60,
    )
)
def test_every_message_is_settled_dropped_or_kept(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    """After any history a new start finds all that was neither settled nor dropped, each kind in its order."""
    folder = tmp_path_factory.mktemp("spool")
    spool = Spool(folder, max_bytes=MIB)
    kept: dict[bool, list[int]] = {True: [], False: []}
    taken: list[Waiting] = []
    sent: list[int] = []
    numbers = itertools.count()
    for what, times in steps:
        for _ in range(times):
            if what in ("add", "event"):
                one = waiting(next(numbers), topic=TELEMETRY if what == "add" else EVENTS)
                spool.add([one])
                kept[one.telemetry].append(number_of(one.message))
            elif what == "take" and (item := spool.take()):
                taken.append(item)
            elif what == "send" and taken:
                item = taken.pop(0)
                spool.sent(item)
                sent.append(number_of(item.message))
            elif what == "settle":
                spool.settle()
                kept = {kind: [n for n in all_ if n not in sent] for kind, all_ in kept.items()}
            elif what == "drop":
                known = {number_of(item.message) for item in taken} | set(sent)
                for kind in (True, False):
                    if free := [n for n in kept[kind] if n not in known]:
                        kept[kind].remove(free[0])
                        assert spool.drop() == (1, 10)
                        break
                else:
                    assert spool.drop() == (0, 0)
            elif what == "reopen":
                spool.close()
                spool, taken, sent = Spool(folder, max_bytes=MIB), [], []
        assert spool.messages == len(kept[True]) + len(kept[False])
        assert spool.samples == 10 * spool.messages
    spool.close()
    with opened(folder) as spool:
        assert [number_of(item.message) for item in all_of(spool)] == kept[False] + kept[True]


KILLED = """
import sys
from pathlib import Path
from collectors.spool import Spool, Waiting
from streams import Outgoing
spool = Spool(Path(sys.argv[1]), max_bytes=1 << 26)
number = spool.messages
while True:
    value = number.to_bytes(4, "big") + bytes(3000)
    spool.add([Waiting(message=Outgoing(topic="isotach.telemetry", key=b"n", value=value), samples=1, made_ns=1)])
    number += 1
    print(number, flush=True)
"""


def test_kill_9_loses_nothing_that_was_stored(tmp_path: Path) -> None:
    """Killed at any moment, again and again: every message that `add` returned from is there, once, in order."""
    dice = random.Random(1)
    stored = 0
    for _ in range(5):
        with subprocess.Popen([sys.executable, "-c", KILLED, tmp_path], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for _ in range(dice.randrange(1, 200)):
                stored = int(child.stdout.readline())
            child.send_signal(signal.SIGKILL)
            rest = child.stdout.read().split()
            stored = int(rest[-1]) if rest else stored
    with opened(tmp_path) as spool:
        found = [number_of(item.message) for item in all_of(spool)]
    assert found == list(range(len(found)))
    assert len(found) in (stored, stored + 1)


@pytest.mark.parametrize("garbage", [b"no database, but long enough" * 200, b"SQLite format 3\0" * 9])
def test_an_unreadable_file_is_set_aside(tmp_path: Path, garbage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """The agent starts with an empty spool, says so, and keeps the old file for whoever wants to look."""
    (tmp_path / FILE).write_bytes(garbage)
    with opened(tmp_path) as spool:
        spool.add([waiting(1)])
        assert spool.messages == 1
    aside = [path for path in tmp_path.iterdir() if "unreadable" in path.name]
    assert [path.read_bytes() for path in aside] == [garbage]
    assert "cannot be read" in caplog.text


def test_a_file_of_another_version_is_set_aside(tmp_path: Path) -> None:
    """Neither older nor newer programs misread each other's spools."""
    with opened(tmp_path) as spool:
        spool.add([waiting(1)])
    db = sqlite3.connect(tmp_path / FILE)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with opened(tmp_path) as spool:
        assert spool.messages == 0
    assert any("unreadable" in path.name for path in tmp_path.iterdir())


def test_a_file_that_turns_unreadable_costs_what_was_in_it(tmp_path: Path) -> None:
    """Overwritten under a running agent: what waited counts as lost to the sample, and spooling goes on."""
    clock = Clock()
    spool = Spool(tmp_path, max_bytes=64 * MIB)
    outbox = Outbox(spool=spool, monotonic=clock, clock_ns=clock.wall)
    producer = Flaky()
    producer.away.set()
    for number in range(1000):
        outbox.put(message(number), patience_s=0.0, samples=10)
    clock.forward(outbox, producer, 1.0)
    before = spool.messages
    size = (tmp_path / FILE).stat().st_size
    (tmp_path / FILE).write_bytes(b"\xff" * size)
    (tmp_path / f"{FILE}-wal").write_bytes(b"\xff" * (tmp_path / f"{FILE}-wal").stat().st_size)
    for number in range(1000, 1010):
        outbox.put(message(number), patience_s=0.0, samples=10)
    producer.away.clear()
    clock.forward(outbox, producer, 120.0)
    for number in range(1010, 1020):
        outbox.put(message(number), patience_s=0.0, samples=10)
    clock.forward(outbox, producer, 10.0)
    sent = {number_of(one) for one in producer.sent}
    assert before >= 999
    assert outbox.dropped >= 999
    assert len(sent) + outbox.dropped == 1020
    assert outbox.dropped_samples == 10 * outbox.dropped
    assert set(range(1010, 1020)) <= sent
    outbox.close(producer, within_s=1.0)


def test_two_agents_do_not_share_a_spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is refused, with the remedy."""
    monkeypatch.setattr("collectors.spool.LOCK_PATIENCE_S", 0.1)
    with opened(tmp_path), pytest.raises(SettingsError, match="another agent uses it"):
        Spool(tmp_path, max_bytes=MIB)
    with opened(tmp_path) as spool:
        assert spool.messages == 0


@pytest.mark.parametrize("place", ["a file", "a folder in its place"])
def test_a_place_that_cannot_be_used_is_refused(tmp_path: Path, place: str) -> None:
    """One line that names the folder and the remedy."""
    folder = tmp_path / "spool"
    if place == "a file":
        folder.write_text("")
    else:
        (folder / FILE).mkdir(parents=True)
    with pytest.raises(SettingsError, match=r"spool .*spool: .*; choose a folder"):
        Spool(folder, max_bytes=MIB)


# --- how much, how fast ------------------------------------------------------------------------------------------


class Clock:
    """A clock that moves while the outbox waits, and by nothing else."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now

    def wall(self) -> int:
        return START_NS + round(self.now * 1e9)

    def forward(self, outbox: Outbox, producer: Flaky, seconds: float) -> None:
        """Let the outbox send for so long, without waiting for real."""
        end = self.now + seconds
        outbox._changed.wait = self._wait  # type: ignore[method-assign]
        outbox.send(producer, for_s=seconds, until=lambda: self.now >= end)

    def _wait(self, timeout: float | None = None) -> bool:
        self.now += max(timeout or 0.0, 0.0)
        return True


@pytest.mark.parametrize("spooled", [True, False])
def test_beyond_its_size_the_loss_is_counted_to_the_sample(tmp_path: Path, spooled: bool) -> None:
    """Sent and dropped are what was made, events last longest, and the folder stays near its limit."""
    clock = Clock()
    spool = Spool(tmp_path, max_bytes=2 * MIB) if spooled else None
    outbox = Outbox(max_bytes=2 * MIB, spool=spool, monotonic=clock, clock_ns=clock.wall)
    producer = Flaky()
    producer.away.set()
    largest = 0
    for number in range(600):
        topic = TELEMETRY if number % 100 else EVENTS
        outbox.put(message(number, size=10_000, topic=topic), patience_s=0.0, samples=7)
        clock.forward(outbox, producer, 1.0)
        largest = max(largest, sum(path.stat().st_size for path in tmp_path.iterdir()))
    assert 350 < outbox.dropped < 450
    producer.away.clear()
    clock.forward(outbox, producer, 600.0)
    sent = [number_of(one) for one in producer.sent]
    assert len(sent) + outbox.dropped == 600
    assert outbox.dropped_samples == 7 * outbox.dropped
    assert {number for number in range(600) if number % 100 == 0} <= set(sent)
    kept = [number for number in sent if number % 100]
    assert kept == sorted(kept)
    assert kept[-1] == 599
    assert largest < 6 * MIB
    outbox.close(producer, within_s=1.0)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < MIB


@pytest.mark.parametrize("spooled", [True, False])
@pytest.mark.parametrize("speed", [20.0, 5.0, 0.0])
def test_a_backlog_is_replayed_at_its_pace(tmp_path: Path, speed: float, spooled: bool) -> None:
    """Ten minutes of telemetry, a message every 10 s, take 600 s / speed; what is new meanwhile follows in order."""
    clock = Clock()
    spool = Spool(tmp_path, max_bytes=64 * MIB) if spooled else None
    outbox = Outbox(spool=spool, replay_speed=speed, monotonic=clock, clock_ns=clock.wall)
    producer = Flaky()
    producer.away.set()
    for number in range(60):
        outbox.put(message(number), patience_s=0.0)
        clock.forward(outbox, producer, 10.0)
    outbox.put(message(60, topic=EVENTS), patience_s=0.0)
    producer.away.clear()
    back = clock.now
    arrived: dict[int, float] = {}
    number = 61
    while outbox.messages and clock.now < back + 300:
        clock.forward(outbox, producer, 0.5)
        if clock.now - back > 10 * (number - 60):
            outbox.put(message(number), patience_s=0.0)
            number += 1
        for one in producer.sent:
            arrived.setdefault(number_of(one), clock.now)
    began = min(arrived.values())
    took = arrived[59] - began
    assert arrived[60] - began < 1.0, "an event waits for no telemetry"
    telemetry = [number_of(one) for one in producer.sent if one.topic == TELEMETRY]
    assert telemetry == sorted(telemetry)
    assert set(arrived) == set(range(number))
    assert took == pytest.approx(590 / speed if speed else 0.0, rel=0.1, abs=2.0)
    outbox.close(producer, within_s=1.0)


def test_fresh_telemetry_is_never_paced(tmp_path: Path) -> None:
    """A thousand nodes' messages within one second are no backlog."""
    clock = Clock()
    outbox = Outbox(spool=Spool(tmp_path, max_bytes=64 * MIB), replay_speed=1.0, monotonic=clock, clock_ns=clock.wall)
    producer = Flaky()
    for number in range(1000):
        outbox.put(message(number), patience_s=0.0)
    clock.forward(outbox, producer, BACKLOG_S / 2)
    assert len(producer.sent) == 1000
    outbox.close(producer, within_s=1.0)


def test_a_jump_of_the_wall_clock_holds_nothing_back(tmp_path: Path) -> None:
    """Messages stamped a year ago, or a year ahead, cost a few seconds at most."""
    clock = Clock()
    stamps = iter([0, 365 * 86_400 * SECOND, -365 * 86_400 * SECOND, 0, *itertools.repeat(0, 10_000)])
    outbox = Outbox(spool=Spool(tmp_path, max_bytes=MIB), monotonic=clock, clock_ns=lambda: clock.wall() + next(stamps))
    producer = Flaky()
    for number in range(4):
        outbox.put(message(number), patience_s=0.0)
    clock.forward(outbox, producer, 10.0)
    assert [number_of(one) for one in producer.sent] == [0, 1, 2, 3]
    outbox.close(producer, within_s=1.0)


def test_a_full_disk_leaves_messages_in_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """SQLite's own word for a full disk: said once, sent from memory, and back to the disk when it has room."""
    clock = Clock()
    spool = Spool(tmp_path, max_bytes=64 * MIB)
    (pages,) = spool._db.execute("PRAGMA page_count").fetchone()
    spool._db.execute(f"PRAGMA max_page_count = {pages + 2}")
    outbox = Outbox(spool=spool, monotonic=clock, clock_ns=clock.wall)
    producer = Flaky()
    producer.away.set()
    with caplog.at_level(logging.INFO):
        for number in range(50):
            outbox.put(message(number), patience_s=0.0)
            clock.forward(outbox, producer, 1.0)
        assert not outbox.spool_works
        assert outbox.messages == 50
        spool._db.execute("PRAGMA max_page_count = 1000000")
        clock.forward(outbox, producer, 30.0)
        assert outbox.spool_works
        assert spool.messages >= 49
        producer.away.clear()
        clock.forward(outbox, producer, 60.0)
    assert sorted(number_of(one) for one in producer.sent) == list(range(50))
    said = [record.message for record in caplog.records if "spool" in record.message]
    assert sum("cannot be used, messages wait in memory" in text for text in said) == 1
    assert sum("can be used again" in text for text in said) == 1
    outbox.close(producer, within_s=1.0)


def test_a_recording_waits_for_room_in_the_spool(tmp_path: Path) -> None:
    """A source without a pace of its own is slowed down, never cut, however small memory and spool are."""
    spool = Spool(tmp_path, max_bytes=100_000)
    outbox, producer, done = Outbox(max_bytes=5_000, spool=spool), Flaky(), threading.Event()
    producer.away.set()

    def fill() -> None:
        for number in range(300):
            outbox.put(message(number), patience_s=None, samples=1)
        done.set()

    thread = threading.Thread(target=fill)
    thread.start()
    outbox.send(producer, for_s=1.0, until=done.is_set)
    assert not done.is_set()
    producer.away.clear()
    outbox.send(producer, for_s=30.0, until=lambda: len(producer.sent) == 300)
    thread.join(5)
    assert [number_of(one) for one in producer.sent] == list(range(300))
    assert outbox.dropped == 0
    outbox.close(producer, within_s=1.0)


# --- the agent ---------------------------------------------------------------------------------------------------


def agent_with(folder: Path, producer: Flaky, source: Scripted, registry: CollectorRegistry | None = None) -> Agent:
    return Agent(
        collectors={"test": (source, 0.02)},
        producer=producer,
        node="n1",
        batch_s=0.1,
        registry=registry,
        spool=Spool(folder, max_bytes=64 * MIB),
        replay_speed=0.0,
    )


def test_what_waited_at_the_end_is_sent_by_the_next_start(tmp_path: Path) -> None:
    """An agent stopped while the log is away loses nothing, counts nothing as dropped and ends at once."""
    made = itertools.count()
    source = Scripted(
        lambda: Reading(samples=[batch(start_ns=START_NS + next(made) * SECOND // 10, interval_s=0.1)]), repeat=True
    )
    producer, registry = Flaky(), CollectorRegistry()
    producer.away.set()
    stop = threading.Event()
    thread = threading.Thread(target=agent_with(tmp_path, producer, source, registry).run, args=(stop,))
    thread.start()
    until(lambda: source.calls > 30 and producer.refusals)
    began = time.monotonic()
    stop.set()
    thread.join(10)
    assert time.monotonic() - began < 8
    assert registry.get_sample_value("isotach_agent_queue_dropped_messages") == 0
    samples = registry.get_sample_value("isotach_agent_samples_total", {"collector": "test"})
    assert samples is not None
    assert samples > 60
    agent_with(tmp_path, back := Flaky(), Scripted()).run(threading.Event())
    assert sum(rows_of(one) for one in back.sent if one.topic == TELEMETRY) == samples
    with opened(tmp_path) as spool:
        assert spool.messages == 0
