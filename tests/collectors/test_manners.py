"""The agent beside jobs: what it costs, how fast it goes, what it says, and what it does when the clock is set."""

import json
import logging
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from support.dcgm import page
from support.recording import START_NS, Flaky, Scripted, batch

from collectors import Reading
from collectors.agent import Agent
from collectors.batches import Batches
from collectors.brake import CALM_SPANS, MOST, SPAN_S, Brake
from collectors.clock import Clock
from collectors.dcgm.exporter import Claims, Exporter
from collectors.dcgm.targets import target_of
from collectors.footprint import Footprint
from collectors.listing import ListedGpu
from collectors.nvml.collector import Nvml
from collectors.nvml.xids import XidLedger
from collectors.outbox import Outbox
from collectors.rate import SAME_BURST, Rates
from collectors.roster import Changes
from collectors.schedule import Schedule
from collectors.self_metrics import AgentMetrics
from collectors.upkeep import Manners, Upkeep
from collectors.worker import Terms, Worker
from streams.topics import EVENTS, INVENTORY, TELEMETRY
from telemetry.records import Event, GpuInventory, NodeInventory, SampleBatch

SECOND = 10**9
HOUR = 3600 * SECOND


class Bench:
    """One worker and its upkeep on clocks and a CPU that only the test moves."""

    def __init__(self, collector: object, *, interval_s: float = 1.0, batch_s: float = 10.0, **manners: float) -> None:
        self.now = 1000.0
        self.wall_ns = START_NS
        self.cpu_s = 0.0
        self.registry = CollectorRegistry()
        self.outbox = Outbox(monotonic=lambda: self.now)
        metrics = AgentMetrics(self.registry)
        self.terms = Terms(
            node="n1",
            agent_version=None,
            inventory_every_s=300.0,
            hang_after_s=30.0,
            clock_ns=lambda: self.wall_ns,
            monotonic=lambda: self.now,
            spread=lambda seconds: seconds,
        )
        self.worker = Worker(
            name="test",
            collector=collector,  # type: ignore[arg-type]
            interval_s=interval_s,
            schedule=Schedule(interval_s=interval_s, now=self.now, jitter=random.Random(1)),
            batches=Batches(batch_s=batch_s),
            outbox=self.outbox,
            metrics=metrics,
            terms=self.terms,
        )
        footprint = Footprint(lambda: (), times=lambda: os.times_result((self.cpu_s, 0.0, 0.0, 0.0, 0.0)))
        self.upkeep = Upkeep(
            workers=[self.worker],
            outbox=self.outbox,
            metrics=metrics,
            node="n1",
            manners=Manners(**manners),  # type: ignore[arg-type]
            clock_ns=lambda: self.wall_ns,
            monotonic=lambda: self.now,
            footprint=footprint,
        )
        self.calls: list[float] = []

    def run(self, seconds: float, *, ratio: Callable[[], float] = lambda: 0.0) -> None:
        """Time passes in halves of a second, each costing as much as `ratio` of a core."""
        for _ in range(round(2 * seconds)):
            self.pass_(0.5, ratio())

    def pass_(self, seconds: float, ratio: float = 0.0) -> None:
        self.now += seconds
        self.wall_ns += round(seconds * 1e9)
        self.cpu_s += seconds * ratio
        if self.worker.due():
            self.calls.append(self.now)
            self.worker.ask()
            self.worker.worked()
        self.worker.attend()
        self.upkeep.attend()

    def sent(self) -> list[tuple[str, bytes, dict[str, bytes]]]:
        producer = Flaky()
        self.outbox.close(producer, within_s=1.0)
        return [(one.topic, one.value or b"", dict(one.headers)) for one in producer.sent]

    def events(self) -> list[dict[str, object]]:
        return [json.loads(value) for topic, value, _ in self.sent() if topic == EVENTS]

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"isotach_agent_{name}", labels)


def snapshots() -> Scripted:
    """A collector of the agent's pace, always with something to say."""
    return Scripted(Reading(samples=[batch(interval_s=0.0)]), repeat=True)


# --- what it costs -----------------------------------------------------------------------------------------------


def test_an_agent_that_costs_too_much_samples_less_often(caplog: pytest.LogCaptureFixture) -> None:
    """Above its limit for a minute: half as often, said in a line of log and a metric, down to an eighth."""
    bench = Bench(snapshots(), max_cpu_ratio=0.02)
    bench.run(59, ratio=lambda: 0.05)
    assert bench.value("slowdown_factor") == 1
    with caplog.at_level(logging.WARNING):
        bench.run(3, ratio=lambda: 0.05)
    assert bench.value("slowdown_factor") == 2
    [line] = [record.message for record in caplog.records]
    assert "5.0 % of a core" in line
    assert "max_cpu_ratio" in line
    bench.run(600, ratio=lambda: 0.05)
    assert bench.value("slowdown_factor") == MOST
    assert {round(b - a) for a, b in pairwise(bench.calls[-20:])} == {MOST}


def test_what_a_slowed_agent_promises_is_what_it_keeps() -> None:
    """Completeness is measured against the interval of the message: samples of both paces are never in one."""
    bench = Bench(snapshots(), max_cpu_ratio=0.02)
    bench.run(200, ratio=lambda: 0.05 if bench.now < 1061 else 0.015)
    intervals = [float(headers["interval-s"]) for topic, _, headers in bench.sent() if topic == TELEMETRY]
    assert set(intervals) == {1.0, 2.0}
    assert intervals == sorted(intervals)


def test_an_agent_that_is_cheap_again_comes_back_slowly() -> None:
    """Five minutes with room for twice the rate lead to twice the rate; one dear minute begins the count anew."""
    bench = Bench(snapshots(), max_cpu_ratio=0.02)
    bench.run(130, ratio=lambda: 0.05)
    assert bench.value("slowdown_factor") == 4
    bench.run(60 * (CALM_SPANS - 1), ratio=lambda: 0.001)
    bench.run(61, ratio=lambda: 0.015)
    bench.run(60 * (CALM_SPANS - 1), ratio=lambda: 0.001)
    assert bench.value("slowdown_factor") == 4
    bench.run(120, ratio=lambda: 0.001)
    assert bench.value("slowdown_factor") == 2
    bench.run(60 * (CALM_SPANS + 1), ratio=lambda: 0.001)
    assert bench.value("slowdown_factor") == 1
    assert {round(b - a) for a, b in pairwise(bench.calls[-20:])} == {1}


def test_one_dear_minute_now_and_then_slows_nothing() -> None:
    """Every ten minutes a fresh process opens all GPUs: that is no lasting cost."""
    bench = Bench(snapshots(), max_cpu_ratio=0.02)
    start = bench.now
    bench.run(3600, ratio=lambda: 0.035 if (bench.now - start) % 600 < 60 else 0.005)
    assert bench.value("slowdown_factor") == 1
    bench.run(130, ratio=lambda: 0.035)
    assert bench.value("slowdown_factor") == 2


@settings(max_examples=60, deadline=None)
@given(full=st.floats(0.001, 0.5), fixed=st.floats(0.0, 0.02))
def test_a_steady_cost_never_makes_it_swing(full: float, fixed: float) -> None:
    """Whatever a sample costs: the pace settles, and does not go up and down for ever."""
    now, cpu_s = 0.0, 0.0
    brake = Brake(max_ratio=0.02, now=now, cpu_s=cpu_s)
    factors = []
    for _ in range(120):
        now += SPAN_S
        cpu_s += SPAN_S * (fixed + full / brake.factor)
        brake.look(now=now, cpu_s=lambda: cpu_s)  # noqa: B023 - called at once
        factors.append(brake.factor)
    assert len(set(factors[10:])) == 1
    assert factors[-1] == MOST or fixed + full / factors[-1] <= 0.02


def test_the_limit_is_off_at_nothing_and_for_who_paces_itself(caplog: pytest.LogCaptureFixture) -> None:
    """0 is no limit; a simulated fleet or a scraper has its own pace, which the agent does not change."""
    free = Bench(snapshots(), max_cpu_ratio=0.0)
    free.run(300, ratio=lambda: 0.9)
    assert free.value("slowdown_factor") == 1
    own = Bench(Scripted(Reading(samples=[batch(interval_s=1.0)]), repeat=True), max_cpu_ratio=0.02)
    with caplog.at_level(logging.INFO):
        own.run(300, ratio=lambda: 0.9)
    assert not caplog.records
    assert (own.value("slowdown_factor"), own.worker.span_s) == (1, 1.0)


def test_the_cost_of_children_counts_while_they_run_and_after() -> None:
    """A real child that burns time: seen while it runs, and not lost when it has ended."""
    burn = "import time\nwhile time.process_time() < 0.3: pass\nprint('x', flush=True)\ninput()"
    child = subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    pids: list[int] = [child.pid]
    footprint = Footprint(lambda: pids)
    before = footprint.cost()
    assert child.stdout is not None
    child.stdout.readline()
    during = footprint.cost()
    assert during.children_cpu_s - before.children_cpu_s >= 0.2 or during.children_cpu_s >= 0.29
    assert during.children_bytes
    assert during.own_bytes
    child.communicate(b"\n")
    pids.clear()
    after = footprint.cost()
    assert after.children_cpu_s >= during.children_cpu_s
    assert after.children_bytes == 0


def test_a_process_of_any_name_is_read(tmp_path: Path) -> None:
    """The name in /proc may hold spaces and brackets; a process that is gone costs nothing and breaks nothing."""
    (tmp_path / "7").mkdir()
    (tmp_path / "self").mkdir()
    ticks = os.sysconf("SC_CLK_TCK")
    fields = " ".join(["S", *["0"] * 10, str(3 * ticks), str(2 * ticks), "0", "0", *["0"] * 30])
    (tmp_path / "7" / "stat").write_text(f"7 (a) b (c)) {fields}\n")
    (tmp_path / "7" / "statm").write_text("10 5 1 1 0 1 0\n")
    cost = Footprint(lambda: (7, 8), proc=tmp_path, times=lambda: os.times_result((1.0, 0.5, 0.25, 0.0, 0.0))).cost()
    assert (cost.own_cpu_s, cost.children_cpu_s) == (1.5, 5.25)
    assert cost.children_bytes == 5 * os.sysconf("SC_PAGE_SIZE")


def test_its_own_cost_is_among_its_metrics() -> None:
    """CPU seconds, resident memory and the factor of a real agent, from the registry that Prometheus reads."""
    registry = CollectorRegistry()
    agent = Agent(
        collectors={"test": (snapshots(), 0.05)}, producer=Flaky(), node="n1", duration_s=0.3, registry=registry
    )
    agent.upkeep._show_at = 0.0  # type: ignore[attr-defined]  # now rather than in ten seconds
    agent.run(threading.Event())
    assert (registry.get_sample_value("isotach_agent_cpu_seconds_total", {"process": "agent"}) or 0) > 0
    assert (registry.get_sample_value("isotach_agent_resident_bytes", {"process": "agent"}) or 0) > 1e6
    assert registry.get_sample_value("isotach_agent_slowdown_factor") == 1


def test_every_metric_of_the_agent_is_documented() -> None:
    """docs/collectors.md names each of them as Prometheus does."""
    registry = CollectorRegistry()
    AgentMetrics(registry)
    page = (Path(__file__).resolve().parents[2] / "docs" / "collectors.md").read_text(encoding="utf-8")
    names = [
        family.name.removeprefix("isotach_agent_") + ("_total" if family.type == "counter" else "")
        for family in registry.collect()
    ]
    assert len(names) > 15
    assert [name for name in names if f"`{name}`" not in page] == []


# --- when the clock is set ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("step_s", "way"), [(3600.0, "forward"), (-3600.0, "back"), (5.5, "forward"), (-5.5, "back")])
def test_a_step_of_the_wall_clock_is_told_and_counted(step_s: float, way: str) -> None:
    """One event with how far and which way, one count, and sampling goes on at its pace."""
    bench = Bench(snapshots())
    bench.run(30)
    bench.wall_ns += round(step_s * 1e9)
    bench.run(30)
    assert bench.value("clock_steps_total", direction=way) == 1
    [event] = bench.events()
    assert (event["kind"], event["node"], event["gpu_uuid"]) == ("clock_skew", "n1", "")
    assert f"set {way} by {abs(step_s):.1f} s" in str(event["detail"])
    assert len(bench.calls) in (59, 60, 61)


def test_slewing_and_small_steps_are_no_steps() -> None:
    """A clock that is slewed for an hour, and set by a second now and then, is one that works."""
    bench = Bench(snapshots())
    for turn in range(600):
        bench.pass_(0.5)
        bench.wall_ns += 250_000 if turn % 50 else SECOND
    assert not bench.events()
    assert bench.value("clock_steps_total", direction="forward") == 0


def test_a_machine_that_slept_does_not_make_up_for_it() -> None:
    """A night's sleep, on either kind of clock, is one collection, not thirty thousand."""
    bench = Bench(snapshots())
    bench.run(10)
    before = len(bench.calls)
    bench.pass_(8 * 3600.0)  # a monotonic clock that goes on in sleep
    bench.wall_ns += 8 * HOUR  # one that stands still
    bench.run(5)
    assert len(bench.calls) - before <= 7


def times_of(ready: Sequence[SampleBatch]) -> list[list[int]]:
    return [[time_ns - START_NS for time_ns in one.time_ns] for one in ready]


@pytest.mark.parametrize("step", [HOUR, -HOUR, 30 * SECOND, -30 * SECOND])
def test_no_message_holds_samples_from_before_and_after_a_step(step: int) -> None:
    """What was stamped before goes out by itself; nothing is lost, no time is changed."""
    batches = Batches(batch_s=10.0)
    stamps = [i * SECOND + (step if i >= 5 else 0) for i in range(12)]
    given_ = [batch(start_ns=START_NS + stamp, gpus=("GPU-a",)) for stamp in stamps]
    ready = [out for i, one in enumerate(given_) for out in batches.add(one, now=float(i))] + batches.drain()
    assert times_of(ready)[0] == stamps[:5]
    assert [stamp for times in times_of(ready) for stamp in times] == stamps
    assert all(max(times) - min(times) <= 15 * SECOND for times in times_of(ready))


def test_a_step_in_the_middle_of_a_reading_parts_it() -> None:
    """Half of the GPUs were read before the clock was set: two messages."""
    mixed = SampleBatch(
        node="n1",
        gpus=("GPU-a", "GPU-b"),
        interval_s=1.0,
        source="synthetic",
        time_ns=[START_NS + HOUR, START_NS],
        gpu=[0, 1],
        columns={"sm_clock_mhz": [1, 2]},
    )
    batches = Batches(batch_s=10.0)
    ready = [*batches.add(mixed, now=0.0), *batches.drain()]
    assert times_of(ready) == [[0], [HOUR]]
    assert [list(one.gpu) for one in ready] == [[1], [0]]


def test_nvml_goes_on_at_once_when_the_clock_is_set_back(tmp_path: Path) -> None:
    """Readings from an hour before the last are new ones, a repeat within seconds is none."""
    nvml = Nvml(node="n1", kernel_log=tmp_path / "none")

    gpu = ListedGpu(
        uuid="GPU-a",
        bus_id="b",
        model=None,
        serial=None,
        driver_version=None,
        mig_enabled=None,
        fabric_state=None,
        fabric_status=None,
        values={},
        statics={},
        missing={},
    )

    def kept(*times: int) -> list[int]:
        changes = Changes(answered={"GPU-a": gpu}, inventory=None, events=[], rejected={})
        rows = {"b": [(time_ns, {"sm_clock_mhz": 1}) for time_ns in times]}
        return [time_ns for one in nvml._batch(changes, rows) for time_ns in one.time_ns]

    assert kept(START_NS, START_NS + SECOND) == [START_NS, START_NS + SECOND]
    assert kept(START_NS + SECOND) == []
    assert kept(START_NS + SECOND - HOUR) == [START_NS + SECOND - HOUR]
    assert kept(START_NS + 2 * SECOND - HOUR) == [START_NS + 2 * SECOND - HOUR]
    nvml.close()


def test_a_scraper_goes_on_at_once_when_the_clock_is_set_back() -> None:
    """Pages that come after their node's clock fell by an hour give samples; the same moment twice gives none."""
    exporter = Exporter(target_of("n1"), interval_s=15, claims=Claims(keep_s=600), fallback_node="here")
    stamps = []
    for tick, offset in enumerate((0, 15 * SECOND, 15 * SECOND, 30 * SECOND - HOUR, 45 * SECOND - HOUR)):
        found = exporter.read(page(1, tick=tick).encode(), time_ns=START_NS + offset, now=15.0 * tick)
        stamps += [time_ns - START_NS for one in found for batch_ in one.samples for time_ns in batch_.time_ns]
    assert stamps == [0, 15 * SECOND, 30 * SECOND - HOUR, 45 * SECOND - HOUR]


def test_inventory_is_repeated_when_the_clock_was_set_back() -> None:
    """What was sent an hour ahead of the clock is sent again in its time, with the time that it has now."""
    record = NodeInventory(node="n1", seen_ns=START_NS, gpus=(GpuInventory(gpu_uuid="GPU-a"),))
    bench = Bench(Scripted(Reading(inventory=[record]), Reading(samples=[batch(interval_s=0.0)]), repeat=True))
    bench.run(10)
    bench.wall_ns -= HOUR
    bench.run(600)
    seen = [json.loads(value)["seen_ns"] for topic, value, _ in bench.sent() if topic == INVENTORY]
    assert len(seen) == 3
    assert seen[0] == START_NS
    assert START_NS - HOUR < seen[1] < seen[2] < START_NS


def test_an_xid_is_not_taken_for_one_from_before_the_clock_was_set() -> None:
    """NVML told of one an hour ahead; the kernel's of the same code now is another one."""
    ledger = XidLedger("n1")
    assert len(ledger.tell("nvml", [(START_NS + HOUR, "GPU-a", 79, "")])) == 1
    assert len(ledger.tell("kernel", [(START_NS, "GPU-a", 79, "")])) == 1


def test_two_clocks_are_told_apart() -> None:
    """Only the difference of both clocks is a step: a monotonic clock that jumps alone is one as well."""
    wall, mono = [START_NS], [0.0]
    clock = Clock(lambda: wall[0], lambda: mono[0])
    wall[0] += HOUR
    mono[0] += 3600.0
    assert clock.step_s() == 0.0
    wall[0] += HOUR
    assert clock.step_s() == pytest.approx(3600.0)
    assert clock.step_s() == 0.0


# --- ten thousand at once ----------------------------------------------------------------------------------------


def busiest(moments: Sequence[float], *, since: float, seconds: int) -> int:
    """How many fall into the fullest second."""
    counted = Counter(int(moment) for moment in moments if since <= moment < since + seconds)
    return max(counted.values())


@pytest.mark.parametrize("interval_s", [5.0, 10.0, 15.0, 60.0, 300.0])
def test_no_second_has_more_than_its_share_of_collections(interval_s: float) -> None:
    """A thousand agents started at once: after their first tick they are spread over the whole interval."""
    moments, first = [], []
    for seed in range(1000):
        schedule = Schedule(interval_s=interval_s, now=0.0, jitter=random.Random(seed))
        now = 0.0
        for tick in range(4):
            now += schedule.wait_s(now)
            (moments if tick else first).append(now)
            schedule.done(now)
    assert max(first) <= 10.0
    assert busiest(first, since=0.0, seconds=10) <= 1.4 * 1000 / min(10, interval_s)
    share = 1000 / interval_s
    assert busiest(moments, since=interval_s, seconds=int(2 * interval_s)) <= share + 6 * share**0.5


def test_a_change_of_pace_leaves_them_spread() -> None:
    """A thousand agents told at once to sample every ten seconds instead of every one, and back."""
    slow, fast = [], []
    for seed in range(1000):
        schedule = Schedule(interval_s=1.0, now=0.0, jitter=random.Random(seed))
        now = 0.0
        for tick in range(60):
            if tick == 20:
                schedule.pace(10.0, now=now)
            if tick == 40:
                schedule.pace(1.0, now=now)
                assert schedule.wait_s(now) <= 1.0
            now += schedule.wait_s(now)
            (slow if 25 <= tick < 40 else fast if tick > 45 else []).append(now)
            schedule.done(now)
    assert busiest(slow, since=100.0, seconds=20) <= 100 + 60
    assert busiest([10 * (moment % 1) for moment in fast], since=0.0, seconds=10) <= 1.4 * len(fast) / 10


def test_a_source_that_is_away_stays_so_when_the_pace_changes() -> None:
    """Reading the settings again is no reason to ask a dead driver sooner."""
    schedule = Schedule(interval_s=10.0, now=0.0, jitter=random.Random(1))
    for _ in range(8):
        schedule.back_off(0.0)
    before = schedule.wait_s(0.0)
    schedule.pace(1.0, now=0.0)
    assert schedule.wait_s(0.0) == before > 100


def test_no_second_has_more_than_its_share_of_messages() -> None:
    """Started at the same instant and sampling every second, a thousand agents do not all send every tenth second."""
    sent = []
    for seed in range(1000):
        spread = random.Random(seed)
        schedule = Schedule(interval_s=1.0, now=0.0, jitter=spread)
        batches = Batches(batch_s=10.0, first_s=lambda spread=spread: spread.uniform(0.0, 10.0))  # type: ignore[misc]
        now = 0.0
        while now < 40:
            now += schedule.wait_s(now)
            one = batch(start_ns=START_NS + round(now * 1e9), gpus=("GPU-a",))
            sent += [now] * len(batches.add(one, now=now))
            schedule.done(now)
    assert busiest(sent, since=11.0, seconds=28) <= 100 + 60


@pytest.mark.parametrize(("interval_s", "told"), [(0.0, [b"GPU-b"]), (1.0, [b"GPU-a", b"GPU-b"])])
def test_the_first_inventories_of_a_rollout_are_spread(interval_s: float, told: list[bytes]) -> None:
    """Each agent keeps its first inventory back for a while of its own; changes are told at once after that.

    Not that of a source with a pace of its own, such as a simulated fleet: its first windows would lack it.
    """
    record = NodeInventory(node="n1", seen_ns=START_NS, gpus=(GpuInventory(gpu_uuid="GPU-a"),))
    changed = NodeInventory(node="n1", seen_ns=START_NS + 1, gpus=(GpuInventory(gpu_uuid="GPU-b"),))
    first = Reading(inventory=[record], samples=[batch(interval_s=interval_s)])
    producer = Flaky()
    agent = Agent(
        collectors={"test": (Scripted(first, Reading(inventory=[changed]), Reading()), 0.05)},
        producer=producer,
        node="n1",
        start_spread_s=30.0,
        jitter=random.Random(3),
    )
    agent.run(threading.Event())
    sent = [message.value or b"" for message in producer.sent if message.topic == INVENTORY]
    assert [gpu for value in sent for gpu in (b"GPU-a", b"GPU-b") if gpu in value] == told  # the newest, at the end


# --- what it says ------------------------------------------------------------------------------------------------


def xids(count: int, *, code: int = 31, gpu: str = "GPU-a") -> list[Event]:
    return [
        Event(time_ns=START_NS + i, node="n1", gpu_uuid=gpu, kind="xid", code=code, detail=f"number {i}")
        for i in range(count)
    ]


def test_ten_thousand_equal_events_are_a_few_and_a_number() -> None:
    """The first ones, then what came after them as a count: nothing vanishes without a word."""
    bench = Bench(Scripted(Reading(events=xids(10_000)), Reading(), repeat=True), max_messages_per_s=20.0)
    bench.run(120)
    told = bench.events()
    assert len(told) == SAME_BURST + 1
    assert f"(and {10_000 - SAME_BURST - 1} more of them before)" in str(told[-1]["detail"])
    assert bench.value("events_held_total", kind="xid") == 10_000 - SAME_BURST


def test_numbers_of_numbers_add_up() -> None:
    """Events that stand for others themselves, as those of XIDs do: the count is of XIDs, not of events."""
    ledger = XidLedger("n1")
    each = [
        Reading(events=ledger.tell("nvml", [(START_NS + i * 60 * SECOND, "GPU-a", 31, "")] * 1_000)) for i in range(10)
    ]
    bench = Bench(Scripted(*each, Reading(), repeat=True), max_messages_per_s=20.0)
    bench.run(120)
    told = bench.events()
    stood = [int(number) for event in told for number in re.findall(r"and (\d+) more", str(event["detail"]))]
    assert len(told) + sum(stood) == 10_000


def test_a_flood_hides_no_other_event() -> None:
    """Another code, another GPU, another kind: each is told while the flood goes on."""
    other = [
        *xids(1, code=79),
        *xids(1, gpu="GPU-b"),
        Event(time_ns=START_NS, node="n1", gpu_uuid="GPU-a", kind="gpu_lost"),
    ]
    bench = Bench(Scripted(Reading(events=[*xids(5_000), *other]), Reading(), repeat=True), max_messages_per_s=20.0)
    bench.run(3)
    told = {(event["kind"], event["code"], event["gpu_uuid"]) for event in bench.events()}
    assert told == {("xid", 31, "GPU-a"), ("xid", 79, "GPU-a"), ("xid", 31, "GPU-b"), ("gpu_lost", 0, "GPU-a")}


def test_a_lasting_flood_is_told_of_while_it_lasts() -> None:
    """Ten a second for ten minutes: one message in half a minute, each with the number of those before it."""
    bench = Bench(Scripted(lambda: Reading(events=xids(10)), repeat=True), max_messages_per_s=20.0)
    bench.run(600)
    told = bench.events()
    assert SAME_BURST + 15 <= len(told) <= SAME_BURST + 25
    assert "more of them before" in str(told[-2]["detail"])


def test_what_is_still_untold_is_told_at_the_end() -> None:
    """An agent that stops in a flood says how much it has not said."""
    bench = Bench(Scripted(Reading(events=xids(100)), Reading(), repeat=True), max_messages_per_s=20.0)
    bench.run(3)
    bench.worker.finish()
    assert "(and 79 more of them before)" in str(bench.events()[-1]["detail"])


def test_no_node_gets_more_messages_than_allowed() -> None:
    """Events of two hundred kinds at once, inventory that changes at every tick: bounded by the setting."""
    number = iter(range(10**6))

    def storm() -> Reading:
        many = [event for code in range(200) for event in xids(5, code=code)]
        gpu = GpuInventory(gpu_uuid=f"GPU-{next(number)}")
        return Reading(events=many, inventory=[NodeInventory(node="n1", seen_ns=START_NS, gpus=(gpu,))])

    bench = Bench(Scripted(storm, repeat=True), max_messages_per_s=5.0)
    bench.run(100)
    sent = bench.sent()
    assert len(sent) <= 5 * 100 + 5 * 10
    assert len(sent) > 400
    newest = [json.loads(value) for topic, value, _ in sent if topic == INVENTORY][-1]
    assert newest["gpus"][0]["gpu_uuid"].startswith("GPU-")


def test_samples_always_go() -> None:
    """However much is said beside them."""
    storm = Reading(events=[event for code in range(100) for event in xids(1, code=code)], samples=[batch(samples=10)])
    bench = Bench(Scripted(storm, repeat=True), max_messages_per_s=1.0)
    bench.run(60)
    assert sum(topic == TELEMETRY for topic, *_ in bench.sent()) in (59, 60, 61)


def test_one_node_does_not_take_another_ones_share() -> None:
    """A scraper speaks for many nodes: one that storms is bounded alone."""
    rates = Rates(per_s=1.0)
    assert sum(rates.may("n1", now=0.0) for _ in range(100)) == 10
    assert rates.may("n2", now=0.0)


def test_recordings_have_no_limit() -> None:
    """A simulated fleet or a replay is as fast as the log takes it."""
    bench = Bench(Scripted(Reading(events=xids(300)), repeat=True), interval_s=0.0, max_messages_per_s=1.0)
    bench.run(1)
    assert len(bench.events()) == 600


# --- told anew ---------------------------------------------------------------------------------------------------


def test_a_running_agent_takes_another_pace() -> None:
    """From an hour to a fraction of a second and the collector is asked soon, without a restart."""
    producer, source = Flaky(), snapshots()
    agent = Agent(collectors={"test": (source, 3600.0)}, producer=producer, node="n1", jitter=random.Random(1))
    stop = threading.Event()
    thread = threading.Thread(target=agent.run, args=(stop,))
    thread.start()
    try:
        agent.upkeep.adopt(Manners(batch_s=0.2, intervals={"test": 0.05}))
        deadline = time.monotonic() + 60
        while not any(message.topic == TELEMETRY for message in list(producer.sent)):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        stop.set()
        thread.join(10)
    assert not thread.is_alive()
