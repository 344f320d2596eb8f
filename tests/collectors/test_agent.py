"""The agent: whatever one collector or the log does, what the others gave arrives."""

import json
import logging
import random
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from support.recording import START_NS, Flaky, Scripted, batch

from collectors import Collector, Reading
from collectors.agent import Agent
from collectors.batches import MAX_ROWS, Batches, join
from collectors.outbox import Outbox
from collectors.schedule import Schedule
from collectors.self_metrics import serve
from streams import Outgoing, TopicPartition
from streams.journal import Journal
from streams.memory import MemoryTransport
from streams.topics import EVENTS, INVENTORY, MEASUREMENTS, TELEMETRY, specs
from telemetry import codec
from telemetry.errors import NoData, SettingsError, SourceHangs, SourceUnavailable
from telemetry.records import Event, GpuInventory, Measurement, NodeInventory, SampleBatch
from telemetry.rows import check_event, check_inventory, check_measurement

ROOT = Path(__file__).resolve().parents[2]


def decode(message: Outgoing) -> pl.DataFrame:
    """The rows of a telemetry message, with the header's interval."""
    mask = codec.parse_schema(message.headers["schema"].decode())
    assert message.value is not None
    body = codec.decompress(message.value)
    codec.check_body(body, mask)
    frame = pl.read_ipc_stream(codec.schema_prefix(mask) + body + codec.END_OF_STREAM)
    return frame.with_columns(interval_s=pl.lit(float(message.headers["interval-s"])))


def of(producer: Flaky, topic: str) -> list[Outgoing]:
    return [message for message in list(producer.sent) if message.topic == topic]


def events_of(producer: Flaky) -> list[tuple[str, str]]:
    found = [json.loads(message.value or b"") for message in of(producer, EVENTS)]
    return [(event["kind"], event["detail"]) for event in found]


@contextmanager
def running(agent: Agent) -> Iterator[threading.Event]:
    """The agent on a thread; stopped and joined at the end, within a few seconds."""
    stop = threading.Event()
    thread = threading.Thread(target=agent.run, args=(stop,))
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        thread.join(8)
        assert not thread.is_alive(), "the agent did not stop"


def until(condition: object, seconds: float = 8.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def agent_of(producer: Flaky, **collectors: tuple[Collector, float]) -> Agent:
    return Agent(collectors=collectors, producer=producer, node="n1", batch_s=0.1, jitter=random.Random(1))


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"isotach_agent_{name}", labels)


# --- from a reading to the log -----------------------------------------------------------------------------------


def test_everything_of_a_reading_reaches_its_topic() -> None:
    """Samples, inventory, events and measurements arrive in a real log, keyed and readable by its rules."""
    transport = MemoryTransport()
    transport.ensure_topics(specs(telemetry_partitions=1))
    gpu = GpuInventory(gpu_uuid="GPU-a", slot=3)
    reading = Reading(
        samples=[batch(samples=10)],
        inventory=[NodeInventory(node="n1", seen_ns=START_NS, gpus=(gpu,), place=(("rack", "r1"),))],
        events=[
            Event(time_ns=START_NS, node="n1", gpu_uuid="GPU-a", kind="xid", code=79),
            Event(time_ns=START_NS, node="n1", gpu_uuid="", kind="missing_gpu"),
        ],
        measurements=[
            Measurement(
                time_ns=START_NS,
                scope="gpu",
                subject="GPU-a",
                name="sgemm",
                workload_class="compute",
                value=2.5,
                unit="ms",
                higher_is_better=False,
            )
        ],
        rejected={"power_w:out_of_range": 2},
    )
    registry = CollectorRegistry()
    producer = transport.producer(client_id="agent")
    Agent(collectors={"test": (Scripted(reading), 0.0)}, producer=producer, node="n1", registry=registry).run(
        threading.Event()
    )
    topics = (TELEMETRY, INVENTORY, EVENTS, MEASUREMENTS)
    reader = transport.read({TopicPartition(topic, 0): 0 for topic in topics})
    messages = list(reader.poll(timeout_s=2.0))
    while not reader.caught_up():
        messages += reader.poll(timeout_s=2.0)
    found = {topic: [message for message in messages if message.topic == topic] for topic in topics}
    [telemetry] = found[TELEMETRY]
    assert telemetry.key == b"n1"
    assert telemetry.headers["gpus"] == b"GPU-a,GPU-b"
    [inventory] = found[INVENTORY]
    assert (inventory.key, inventory.headers["content-type"]) == (b"n1", b"application/json")
    node, gpus = check_inventory(json.loads(inventory.value or b""))
    assert (node["place"], gpus[0]["slot"]) == ([["rack", "r1"]], 3)
    assert [message.key for message in found[EVENTS]] == [b"GPU-a", b"n1"]
    assert check_event(json.loads(found[EVENTS][0].value or b""))["code"] == 79
    assert check_measurement(json.loads(found[MEASUREMENTS][0].value or b""))["subject"] == "GPU-a"
    assert found[MEASUREMENTS][0].key == b"GPU-a"
    assert value(registry, "samples_total", collector="test") == 20
    assert value(registry, "rejected_total", collector="test", metric="power_w", reason="out_of_range") == 2
    reader.close()
    producer.close()
    transport.close()


def test_short_batches_are_joined_and_nothing_is_left_behind() -> None:
    """Fifty samples of one second each become messages of ten seconds, the last one flushed at the end."""
    producer = Flaky()
    readings = [Reading(samples=[batch(start_ns=START_NS + i * 10**9)]) for i in range(53)]
    Agent(collectors={"test": (Scripted(*readings), 0.0)}, producer=producer, node="n1").run(threading.Event())
    frames = [decode(message) for message in of(producer, TELEMETRY)]
    assert [frame.height for frame in frames] == [20, 20, 20, 20, 20, 6]
    together = pl.concat(frames)
    assert together["time_ns"].to_list() == [START_NS + i // 2 * 10**9 for i in range(106)]


def test_the_agent_s_interval_is_promised_for_collectors_that_it_paces() -> None:
    """A snapshot collector does not know how often it is asked: completeness is measured against the agent's pace."""
    producer = Flaky()
    snapshot = Reading(samples=[batch(interval_s=0.0)])
    with running(agent_of(producer, test=(Scripted(snapshot, repeat=True), 0.05))):
        until(lambda: of(producer, TELEMETRY))
    assert set(decode(of(producer, TELEMETRY)[0])["interval_s"]) == {0.05}


def test_inventory_is_repeated_while_its_source_works() -> None:
    """Late readers find it again, with the time it was last known to hold, and with the agent's version."""
    producer = Flaky()
    record = NodeInventory(node="n1", seen_ns=START_NS, gpus=(GpuInventory(gpu_uuid="GPU-a"),))
    collector = Scripted(Reading(inventory=[record]), Reading(samples=[batch()]), repeat=True)
    agent = Agent(
        collectors={"test": (collector, 0.02)}, producer=producer, node="n1", batch_s=0.1, inventory_every_s=0.1
    )
    with running(agent):
        until(lambda: len(of(producer, INVENTORY)) >= 3)
    seen = [json.loads(message.value or b"")["seen_ns"] for message in of(producer, INVENTORY)]
    assert seen == sorted(set(seen))
    assert seen[0] == START_NS


# --- collectors in trouble ---------------------------------------------------------------------------------------


def test_a_hanging_collector_stops_nobody_else() -> None:
    """One collector hangs in its call: told once as a hang, the other stays on time, and the agent stops cleanly."""
    producer = Flaky()
    release = threading.Event()

    def hang() -> Reading:
        release.wait(30)
        return Reading()

    ticks: list[float] = []

    def tick() -> Reading:
        ticks.append(time.monotonic())
        return Reading(samples=[batch(node="good", interval_s=0.05, start_ns=time.time_ns())])

    agent = Agent(
        collectors={"stuck": (Scripted(hang), 0.05), "good": (Scripted(tick, repeat=True), 0.05)},
        producer=producer,
        node="n1",
        batch_s=0.1,
        hang_after_s=0.3,
        stop_within_s=3.0,
    )
    try:
        with running(agent):
            until(lambda: events_of(producer))
            time.sleep(0.6)
        assert [kind for kind, _ in events_of(producer)] == ["collector_hang"]
        assert max(b - a for a, b in pairwise(ticks)) < 0.4
        assert len(of(producer, TELEMETRY)) > 5
    finally:
        release.set()


@pytest.mark.parametrize(
    ("error", "kind", "detail"),
    [
        (SourceUnavailable("the driver is not loaded"), "collector_failed", "test: the driver is not loaded"),
        (SourceHangs("query hangs: no answer"), "collector_hang", "test: query hangs: no answer"),
        (ZeroDivisionError("a bug"), "collector_failed", "test: ZeroDivisionError: a bug"),
    ],
)
def test_a_failing_collector_is_told_once_and_tried_again(
    error: Exception, kind: str, detail: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it raises: one event, one line of log, a metric, a retry; and it works again when its source does."""
    monkeypatch.setattr("collectors.schedule.FIRST_RETRY_S", 0.05)
    producer, registry = Flaky(), CollectorRegistry()
    collector = Scripted(error, error, error, Reading(samples=[batch()]), repeat=True)
    agent = Agent(collectors={"test": (collector, 0.01)}, producer=producer, node="n1", batch_s=0.1, registry=registry)
    with caplog.at_level(logging.INFO), running(agent):
        until(lambda: value(registry, "collector_success", collector="test") == 0.0)
        until(lambda: value(registry, "collector_success", collector="test") == 1.0)
    assert events_of(producer) == [(kind, detail)]
    assert sum(record.levelno == logging.ERROR for record in caplog.records) == 1
    assert value(registry, "collector_errors_total", collector="test", error=type(error).__name__) == 3
    completeness = value(registry, "collector_completeness_ratio", collector="test")
    assert completeness is not None
    assert 0 < completeness < 1
    assert collector.closed


def test_a_flapping_source_does_not_flood_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gone and back twenty times in a row: one event, since the same trouble is told every five minutes at most."""
    monkeypatch.setattr("collectors.schedule.FIRST_RETRY_S", 0.01)
    producer = Flaky()
    steps = [SourceUnavailable("flapping"), Reading(samples=[batch()])] * 20
    agent_of(producer, test=(Scripted(*steps), 0.01)).run(threading.Event())
    assert events_of(producer) == [("collector_failed", "test: flapping")]
    assert sum(record.levelno == logging.ERROR for record in caplog.records) == 1


def test_having_no_data_is_no_failure() -> None:
    """NoData leaves success at 1, and an unpaced collector does not spin on it."""
    producer, registry = Flaky(), CollectorRegistry()
    collector = Scripted(NoData("nothing now"), repeat=True)
    agent = Agent(collectors={"test": (collector, 0.0)}, producer=producer, node="n1", registry=registry)
    with running(agent):
        time.sleep(0.5)
    assert value(registry, "collector_success", collector="test") == 1.0
    assert collector.calls < 20
    assert not producer.sent


def test_an_unencodable_batch_costs_only_itself(caplog: pytest.LogCaptureFixture) -> None:
    """A collector's bug in one batch is counted and said once; its other batches arrive."""
    producer, registry = Flaky(), CollectorRegistry()
    bad = replace(batch(samples=10), columns={"sm_clock_mhz": [-1] * 20})
    collector = Scripted(Reading(samples=[bad, batch(samples=10), bad]), Reading(samples=[bad]))
    Agent(collectors={"test": (collector, 0.0)}, producer=producer, node="n1", registry=registry).run(threading.Event())
    assert len(of(producer, TELEMETRY)) == 1
    assert value(registry, "rejected_total", collector="test", metric="batch", reason="unencodable") == 3
    assert sum("cannot be encoded" in record.message for record in caplog.records) == 1


def test_a_jump_of_the_wall_clock_stops_nothing() -> None:
    """Samples from an hour ahead and an hour back are sent on like any others."""
    producer = Flaky()
    hour = 3600 * 10**9
    times = [0, 1, hour, hour + 1, -hour, 1 - hour]
    readings = [Reading(samples=[batch(start_ns=START_NS + t)]) for t in times]
    Agent(
        collectors={"test": (Scripted(*readings), 0.0)},
        producer=producer,
        node="n1",
        clock_ns=iter(range(10**18, 0, -(10**9))).__next__,
    ).run(threading.Event())
    got = [t for message in of(producer, TELEMETRY) for t in decode(message)["time_ns"].to_list()]
    assert sorted(got) == sorted(START_NS + t for t in times for _ in range(2))


# --- the log in trouble ------------------------------------------------------------------------------------------


def test_an_outage_of_the_log_loses_nothing_that_fits(caplog: pytest.LogCaptureFixture) -> None:
    """Collecting goes on while the log is away; what waited arrives afterwards, in order, said once each way."""
    producer = Flaky()
    producer.away.set()
    number = iter(range(10**6))
    source = Scripted(
        lambda: Reading(samples=[batch(start_ns=START_NS + next(number) * 10**8, interval_s=0.1)]), repeat=True
    )
    with caplog.at_level(logging.INFO), running(agent_of(producer, test=(source, 0.02))):
        until(lambda: source.calls > 20 and producer.refusals)
        assert not producer.sent
        producer.away.clear()
        until(lambda: len(of(producer, TELEMETRY)) > 20)
    times = [t for message in of(producer, TELEMETRY) for t in decode(message)["time_ns"].to_list()]
    assert times == [START_NS + i // 2 * 10**8 for i in range(len(times))]
    said = [record.message for record in caplog.records if record.name == "collectors.outbox"]
    assert len(said) == 2
    assert "cannot be used" in said[0]
    assert "takes messages again" in said[1]


def test_what_was_sent_is_readable_while_the_agent_runs(tmp_path: Path) -> None:
    """A log with a journal shows messages once they are flushed: the agent does not wait for its end with that."""
    transport = MemoryTransport(journal=Journal(tmp_path / "log.journal"))
    transport.ensure_topics(specs(telemetry_partitions=1))
    reader = transport.read({TopicPartition(TELEMETRY, 0): 0})
    source = Scripted(Reading(samples=[batch(samples=10)]), NoData("no more"), repeat=True)
    producer = transport.producer(client_id="agent")
    with running(Agent(collectors={"test": (source, 0.05)}, producer=producer, node="n1")):
        until(lambda: reader.poll(timeout_s=0.1))
    reader.close()
    producer.close()
    transport.close()


def message(topic: str, number: int, size: int = 1000) -> Outgoing:
    return Outgoing(topic=topic, key=b"n1", value=number.to_bytes(4, "big") + bytes(size - 4))


def test_a_full_queue_drops_the_oldest_telemetry_first() -> None:
    """Events outlive samples, new samples outlive old ones, and every loss is counted."""
    outbox, producer = Outbox(max_bytes=5 * 1200), Flaky()
    outbox.put(message(EVENTS, 0), patience_s=0.0)
    for number in range(1, 10):
        outbox.put(message(TELEMETRY, number), patience_s=0.0)
    assert (outbox.messages, outbox.dropped) == (5, 5)
    outbox.close(producer, within_s=1.0)
    assert [int.from_bytes((sent.value or b"")[:4], "big") for sent in producer.sent] == [0, 6, 7, 8, 9]


def test_a_recording_waits_for_room_instead_of_losing() -> None:
    """A collector without a pace of its own is slowed down by the log, never cut."""
    outbox, producer = Outbox(max_bytes=3 * 1200), Flaky()
    done = threading.Event()

    def fill() -> None:
        for number in range(50):
            outbox.put(message(TELEMETRY, number), patience_s=None)
        done.set()

    thread = threading.Thread(target=fill)
    thread.start()
    until(lambda: outbox.messages == 3)
    assert not done.is_set()
    outbox.send(producer, for_s=5.0, until=lambda: len(producer.sent) == 50)
    thread.join(5)
    assert (len(producer.sent), outbox.dropped, done.is_set()) == (50, 0, True)


def test_stopping_while_the_log_is_away_says_what_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    """The agent ends in its time, and the messages that it could not send are counted and logged."""
    producer = Flaky()
    producer.away.set()
    started = time.monotonic()
    with running(agent_of(producer, test=(Scripted(Reading(samples=[batch(samples=10)]), repeat=True), 0.02))):
        until(lambda: producer.refusals)
    assert time.monotonic() - started < 6
    assert any("messages unsent: broker down" in record.message for record in caplog.records)


# --- when, and how much at once ----------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(
    interval=st.sampled_from([0.1, 1.0, 7.0]),
    durations=st.lists(st.floats(0, 30), min_size=1, max_size=30),
    seed=st.integers(0, 1000),
)
def test_ticks_stay_on_their_grid(interval: float, durations: list[float], seed: int) -> None:
    """However long calls take, ticks come at start + k intervals, none is early and every missed one is counted."""
    now = 50.0
    schedule = Schedule(interval_s=interval, now=now, jitter=random.Random(seed))
    now += schedule.wait_s(now)
    start, ticks = now, 0
    for duration in durations:
        now += duration
        ticks += 1 + schedule.done(now)
        wait = schedule.wait_s(now)
        now += wait
        if wait > 0:
            assert (now - start) / interval == pytest.approx(ticks, abs=1e-6)
        assert now - start > (ticks - 1e-6) * interval
        assert now - start < (ticks + 1 + 1e-6) * interval


def test_retries_are_spaced_up_to_five_minutes() -> None:
    """1, 2, 4 ... 300 s and a fifth more or less; one success and the pace is back."""
    now = 0.0
    schedule = Schedule(interval_s=1.0, now=now, jitter=random.Random(2))
    now += schedule.wait_s(now)
    delays = []
    for _ in range(12):
        schedule.back_off(now)
        delays.append(schedule.wait_s(now))
        now += delays[-1]
    for delay, expected in zip(delays, (1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300), strict=True):
        assert 0.8 * expected <= delay <= 1.2 * expected + 1
    schedule.done(now)
    assert schedule.wait_s(now) == pytest.approx(1.0)


def test_agents_do_not_start_in_step() -> None:
    """The first ticks of a thousand agents spread over the interval."""
    waits = sorted(Schedule(interval_s=10.0, now=0.0, jitter=random.Random(i)).wait_s(0.0) for i in range(1000))
    assert max(b - a for a, b in pairwise(waits)) < 0.2
    assert waits[-1] > 9.5


parts = st.lists(
    st.tuples(
        st.integers(1, 5),
        st.lists(st.sampled_from(["GPU-a", "GPU-b", "GPU-c"]), min_size=1, max_size=3, unique=True),
        st.sampled_from([None, 1980]),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(parts=parts)
def test_joining_keeps_every_row(parts: list[tuple[int, list[str], int | None, bool]]) -> None:
    """Batches of changing GPUs and columns: after joining, the same rows in the same order."""
    given_batches = [
        batch(start_ns=START_NS + i * 10**10, samples=samples, gpus=gpus, clock=clock)
        for i, (samples, gpus, clock, _) in enumerate(parts)
    ]
    given_batches = [
        one if keep else replace(one, columns={"sm_clock_mhz": one.columns["sm_clock_mhz"]})
        for one, (*_, keep) in zip(given_batches, parts, strict=True)
    ]
    batches = Batches(batch_s=25.0)
    out = [ready for one in given_batches for ready in batches.add(one, now=0.0)] + batches.drain()
    assert [row for one in out for row in rows(one)] == [row for one in given_batches for row in rows(one)]
    assert not batches.drain()


def rows(one: SampleBatch) -> list[tuple[object, ...]]:
    def column(name: str, i: int) -> object:
        return one.columns[name][i] if name in one.columns else None

    return [
        (one.time_ns[i], one.gpus[one.gpu[i]], column("sm_clock_mhz", i), column("power_w", i)) for i in range(len(one))
    ]


def test_a_long_batch_is_passed_on_as_it_is() -> None:
    """No row of it is touched: what comes out is the very object, unless it is too large for one message."""
    batches = Batches(batch_s=10.0)
    long = batch(samples=10)
    [same] = batches.add(long, now=0.0)
    assert same is long
    huge = batches.add(batch(samples=MAX_ROWS), now=0.0)
    assert [len(one) for one in huge] == [MAX_ROWS, MAX_ROWS]


def test_what_waits_too_long_goes_out_alone() -> None:
    """A source that falls silent does not keep its last samples back."""
    batches = Batches(batch_s=10.0)
    assert not batches.add(batch(), now=100.0)
    assert not batches.due(now=109.0)
    assert len(batches.due(now=110.0)) == 1


def test_joining_takes_numbers_in_any_buffer() -> None:
    """Parts whose columns are numpy arrays are joined row by row, and can be sent."""
    plain = batch(samples=3)
    kinds = {"sm_clock_mhz": np.uint16, "power_w": np.float32}
    arrays = {name: np.asarray(values, dtype=kinds[name]) for name, values in plain.columns.items()}
    made = replace(plain, columns=arrays, gpu=np.asarray(plain.gpu, dtype=np.uint16), time_ns=np.asarray(plain.time_ns))
    joined = join([made, plain, made])
    assert len(joined) == 3 * len(plain)
    assert {name: [float(v or 0) for v in values] for name, values in joined.columns.items()} == {
        name: [float(v or 0) for v in values] * 3 for name, values in plain.columns.items()
    }
    assert codec.decompress(codec.Encoder().encode(joined).value)


def test_one_joined_batch_is_the_part_itself() -> None:
    """Nothing is copied where there is nothing to join."""
    one = batch()
    assert join([one]) is one


# --- the process -------------------------------------------------------------------------------------------------


def test_the_agent_runs_for_the_time_it_was_told() -> None:
    """`duration_s` ends the run by itself."""
    producer = Flaky()
    source = Scripted(Reading(samples=[batch()]), repeat=True)
    started = time.monotonic()
    Agent(collectors={"test": (source, 0.05)}, producer=producer, node="n1", duration_s=0.3).run(threading.Event())
    assert 0.2 < time.monotonic() - started < 5
    assert producer.sent


def test_settings_that_make_no_sense_are_refused() -> None:
    """No collector, or a negative interval."""
    with pytest.raises(SettingsError, match="no collector"):
        Agent(collectors={}, producer=Flaky(), node="n1")
    with pytest.raises(SettingsError, match="0 or more seconds"):
        agent_of(Flaky(), test=(Scripted(), -1.0))


def test_metrics_are_served_and_the_server_closes() -> None:
    """A real scrape sees the collector; a second server on the port is refused in words; closing frees the port."""
    registry = CollectorRegistry()
    source = Scripted(Reading(samples=[batch()]))
    Agent(collectors={"test": (source, 0.0)}, producer=Flaky(), node="n1", registry=registry).run(threading.Event())
    server = serve(registry, port=0)
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=5) as response:
        body = response.read().decode()
    assert 'isotach_agent_collector_success{collector="test"} 1.0' in body
    assert 'isotach_agent_samples_total{collector="test"} 2.0' in body
    with pytest.raises(SettingsError, match="cannot be served"):
        serve(registry, port=server.port)
    server.close()
    serve(registry, port=server.port).close()


def test_a_node_stays_light() -> None:
    """The agent and its collectors load nothing that a GPU node would not have room for."""
    script = (
        "import sys, collectors.agent, collectors.nvidia_smi, collectors.replay\n"
        "heavy = {'polars', 'pyarrow', 'duckdb', 'fastapi', 'numpy', 'yaml', 'scipy', 'sklearn', 'pydantic'}\n"
        "print(sorted(heavy & sys.modules.keys()))\n"
        "print(next(int(l.split()[1]) for l in open('/proc/self/status') if l.startswith('VmRSS')))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    heavy, rss_kib = done.stdout.splitlines()
    assert heavy == "[]"
    assert int(rss_kib) < 48 * 1024
