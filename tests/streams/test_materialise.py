"""Tests of the materialiser: the memory transport into a real DuckDB store.

To add a topic: a maker of its messages here, and a test that its rows arrive once.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pytest
from support.jobs import Clock, dead_letter_rules, eventually, running
from support.samples import START_NS as START
from support.samples import WINDOW_NS, windows

from analytics.frames import frame
from analytics.store import Store
from streams import Outgoing
from streams.counters import Counters
from streams.materialise import TOPICS, CaughtUp, run_materialiser
from streams.memory import MemoryTransport
from streams.parts import encode_window
from streams.records import encode_rows
from streams.topics import EVENTS, INVENTORY, JOBS, MEASUREMENTS, SCORES, TRANSITIONS, WINDOWS, specs
from telemetry import tables
from telemetry.errors import StoreError

NODE = {"node": "n1", "seen_ns": START, "gpus": [{"gpu_uuid": "GPU-a", "slot": 0}, {"gpu_uuid": "GPU-b"}]}
EVENT = {"time_ns": START, "node": "n1", "gpu_uuid": "GPU-a", "kind": "xid", "code": 79}
RESULT = {
    "time_ns": START, "scope": "gpu", "subject": "GPU-a", "name": "sgemm", "workload_class": "compute", "value": 12.5,
    "unit": "ms", "higher_is_better": False, "evidence": {"clock": 1980},
}  # fmt: skip
RUNNING = {
    "node": "n1", "seen_ns": START,
    "jobs": [{"gpu_uuid": "GPU-a", "job_id": "7", "source": "slurm", "started_ns": START}],
}  # fmt: skip


def json(topic: str, key: str | None, value: Any) -> Outgoing:
    raw = value if isinstance(value, bytes) or value is None else orjson.dumps(value)
    return Outgoing(topic=topic, key=key.encode() if key else None, value=raw)


def score(uuid: str, *, at: int = 0, tier: str = "standard") -> Outgoing:
    """A score as the score job writes it."""
    row = {
        "gpu_uuid": uuid, "node": "n1", "as_of_ns": START + at * WINDOW_NS, "window_start_ns": START, "peers": 8,
        "evidence": 1, "tier": tier, "tier_since_ns": START, "reasons": [{"code": "x"}], "action": "none",
        "state": {"a": 1},
    }  # fmt: skip
    (message,) = encode_rows(tables.SCORES, frame(tables.SCORES, [row]), topic=SCORES, key="gpu_uuid")
    return message


def transition(uuid: str) -> Outgoing:
    row = {
        "transition_id": f"t-{uuid}", "time_ns": START, "gpu_uuid": uuid, "to_tier": "degraded", "reasons": [],
        "action": "watch",
    }  # fmt: skip
    (message,) = encode_rows(tables.TRANSITIONS, frame(tables.TRANSITIONS, [row]), topic=TRANSITIONS, key="gpu_uuid")
    return message


def window(uuids: list[str], *, at: int = 0, partition: int = 0, samples: int = 60) -> Outgoing:
    rows = windows([{"gpu_uuid": uuid, "node": "n1", "slot": 0} for uuid in uuids], at=at)
    rows = rows.with_columns(samples=pl.lit(samples, pl.UInt32))
    start = START + at * WINDOW_NS
    (message,) = encode_window(partition=partition, window_start_ns=start, window_ns=WINDOW_NS, rows=rows)
    return message


class Site:
    """A log, a store, and the materialiser between them."""

    def __init__(self) -> None:
        self.clock = Clock(START + WINDOW_NS)
        self.transport = MemoryTransport(clock_ns=self.clock)
        self.transport.ensure_topics(specs())
        self.producer = self.transport.producer(client_id="test")
        self.store = Store(None)
        self.counters = Counters()
        self.caught_up = CaughtUp()

    def send(self, *messages: Outgoing) -> None:
        for message in messages:
            self.producer.send(message)
        self.producer.flush()

    def run(self, **settings: Any) -> Any:
        known = {"poll_s": 0.04, "back_off_s": 0.02, "counters": self.counters, "caught_up": self.caught_up}
        return running(run_materialiser, self.transport, settings.pop("store", self.store), **known, **settings)

    def settle(self) -> None:
        """Run until everything in the log is stored."""
        self.caught_up = CaughtUp()
        with self.run():
            eventually(self.caught_up.ready.is_set, "catching up")

    def rows(self, table: str) -> list[dict[str, Any]]:
        return self.store.table(table).to_dicts()

    def close(self) -> None:
        self.store.close()
        self.transport.close()


@pytest.fixture
def site() -> Iterator[Site]:
    one = Site()
    yield one
    one.close()


ALL = (
    json(INVENTORY, "n1", NODE),
    json(EVENTS, "GPU-a", EVENT),
    json(MEASUREMENTS, "GPU-a", RESULT),
    json(JOBS, "n1", RUNNING),
    score("GPU-a"),
    transition("GPU-a"),
    window(["GPU-a", "GPU-b"]),
)


def counts(site: Site) -> dict[str, int]:
    names = ("nodes", "gpus", "events", "measurements", "jobs", "scores", "transitions", "windows")
    return {name: len(site.rows(name)) for name in names}


ONCE = {"nodes": 1, "gpus": 2, "events": 1, "measurements": 1, "jobs": 1, "scores": 1, "transitions": 1, "windows": 2}


def test_every_topic_arrives_in_its_table(site: Site) -> None:
    """One message of each kind gives its rows, json columns included; readiness follows."""
    site.send(*ALL)
    site.settle()
    assert counts(site) == ONCE
    assert orjson.loads(site.rows("measurements")[0]["evidence"]) == {"clock": 1980}
    assert orjson.loads(site.rows("scores")[0]["state"]) == {"a": 1}
    assert site.counters.value("stored_rows", "windows") == 2


def test_the_same_messages_again_change_nothing(site: Site) -> None:
    """Sent again, read again in one batch or in another life, each row is there once."""
    site.send(*ALL, *ALL)
    site.settle()
    site.send(*ALL)
    site.settle()
    assert counts(site) == ONCE


def test_a_restart_goes_on_from_the_stores_places(site: Site) -> None:
    """The next life reads nothing twice; another log is read from its beginning."""
    site.send(*ALL)
    site.settle()
    log_id, places = site.store.places()
    assert log_id == site.transport.log_id
    assert {places[topic, 0] for topic in TOPICS} == {1}
    before = site.counters.value("messages", EVENTS)
    site.settle()
    assert site.counters.value("messages", EVENTS) == before
    other = Site()
    other.store.close()
    other.store = site.store
    other.send(json(EVENTS, "GPU-z", EVENT | {"gpu_uuid": "GPU-z"}))
    other.settle()
    assert len(site.rows("events")) == 2
    assert site.store.places()[0] == other.transport.log_id
    other.transport.close()


def test_a_tombstone_deletes_and_an_empty_value_is_a_dead_letter(site: Site) -> None:
    """A null value deletes its key, in whatever batch; empty bytes are refused; reading goes on."""
    site.send(score("GPU-a"), score("GPU-b"), score("GPU-c"), json(INVENTORY, "n1", NODE))
    site.settle()
    site.send(json(SCORES, "GPU-a", None), json(SCORES, "GPU-b", b""), json(INVENTORY, "n1", None))
    site.send(json(SCORES, "GPU-c", None), score("GPU-c", at=1, tier="premium"))
    site.settle()
    assert [(row["gpu_uuid"], row["tier"]) for row in site.rows("scores")] == [
        ("GPU-b", "standard"),
        ("GPU-c", "premium"),
    ]
    assert site.rows("nodes") == []
    assert dead_letter_rules(site.transport) == ["empty"]


def test_a_tombstone_after_a_row_of_the_same_batch_wins(site: Site) -> None:
    """The last word of a batch on a key counts."""
    site.send(score("GPU-a"), score("GPU-b"), json(SCORES, "GPU-a", None))
    site.settle()
    assert [row["gpu_uuid"] for row in site.rows("scores")] == ["GPU-b"]


def test_the_newest_of_equal_keys_in_a_batch_stays(site: Site) -> None:
    """Many scores of a GPU in one transaction leave the last."""
    site.send(*(score("GPU-a", at=i, tier="premium" if i == 9 else "standard") for i in range(10)))
    site.settle()
    assert [row["tier"] for row in site.rows("scores")] == ["premium"]


def test_halves_of_a_window_in_two_partitions_are_one_row(site: Site) -> None:
    """A GPU whose samples went to two partitions has one window with both halves."""
    site.send(window(["GPU-a"], partition=0, samples=25), window(["GPU-a", "GPU-b"], partition=1, samples=35))
    site.settle()
    assert [(row["gpu_uuid"], row["samples"]) for row in site.rows("windows")] == [("GPU-a", 60), ("GPU-b", 35)]


def test_what_cannot_be_read_is_set_aside_and_stops_nothing(site: Site) -> None:
    """Every topic takes garbage of every kind; the good rows around it arrive, each bad message is a dead letter."""
    junk: list[Any] = [b"", b"\xff\x00\x7b", b"[]", b"7", b"{}", b"null", b"{" * 9]
    junk += [b'{"node": 7}', b'{"time_ns": 1e999}']
    bad = [json(topic, f"k{i}", value) for topic in TOPICS for i, value in enumerate(junk)]
    bad += [json(topic, "k", None) for topic in (EVENTS, MEASUREMENTS, TRANSITIONS, WINDOWS)]
    bad += [Outgoing(topic=topic, key=b"\xff", value=None) for topic in (SCORES, INVENTORY)]
    good = window(["GPU-a", "GPU-b"])
    for name, text in (
        ("partition", b"-1"), ("window-start-ns", b"x"), ("window-s", b"nan"), ("part", b"2/1"), ("part", b"0/0"),
        ("watermark-ns", b"9" * 30), ("window-start-ns", b"1" + b"0" * 18),
    ):  # fmt: skip
        bad.append(Outgoing(topic=WINDOWS, key=None, value=good.value, headers={**good.headers, name: text}))
    bad.append(Outgoing(topic=WINDOWS, key=None, value=(good.value or b"")[:99], headers=good.headers))
    bad.append(json(JOBS, "n1", RUNNING | {"jobs": [{"gpu_uuid": "GPU-a"}]}))
    bad.append(json(MEASUREMENTS, "k", RESULT | {"workload_class": "speedy"}))
    bad.append(json(INVENTORY, "twice", NODE | {"gpus": [{"gpu_uuid": "x"}, {"gpu_uuid": "x"}]}))
    bad.append(json(EVENTS, "k", EVENT | {"detail": "x" * 5_000}))
    mixed = [*bad]
    for i, message in enumerate(ALL):
        mixed.insert(i * 9, message)
    site.send(*mixed)
    site.settle()
    assert counts(site) == ONCE
    assert len(dead_letter_rules(site.transport)) == len(bad)
    assert sum(n for (name, _), n in site.counters.snapshot().items() if name == "rejected") == len(bad)


class Flaky:
    """A store that is away now and then."""

    def __init__(self, store: Store, failures: int) -> None:
        self._store = store
        self.failures = failures

    def places(self) -> tuple[str | None, dict[tuple[str, int], int]]:
        return self._store.places()

    def write(self, rows: Any, **places: Any) -> None:
        if self.failures:
            self.failures -= 1
            raise StoreError("the disk is full")
        self._store.write(rows, **places)


def test_a_store_that_is_away_costs_time_and_no_row(site: Site) -> None:
    """A write that fails is done again from the store's places."""
    site.send(*ALL)
    with site.run(store=Flaky(site.store, 3)):
        eventually(site.caught_up.ready.is_set, "catching up")
    assert counts(site) == ONCE
    assert site.counters.value("retries", "materialise") == 3


def test_readers_are_told_of_each_write(site: Site) -> None:
    """`on_write` is called after a transaction, and not without one."""
    calls: list[int] = []
    with site.run(on_write=lambda: calls.append(len(site.rows("events")))):
        eventually(site.caught_up.ready.is_set, "catching up")
        assert calls == []
        site.send(json(EVENTS, "GPU-a", EVENT))
        eventually(lambda: calls, "a call")
    assert calls == [1]


def test_a_store_in_a_file_resumes(tmp_path: Path) -> None:
    """Closed and opened again, the store says where to go on."""
    site = Site()
    site.store.close()
    for i in range(3):
        site.store = Store(tmp_path / "isotach.duckdb")
        site.send(json(EVENTS, "GPU-a", EVENT | {"code": i}))
        site.settle()
        assert len(site.rows("events")) == i + 1
        assert site.store.places()[1]["isotach.events", 0] == i + 1
        site.store.close()
    site.transport.close()
