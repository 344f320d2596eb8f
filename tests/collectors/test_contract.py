"""What every collector keeps to, whatever its source; and the page that says what each one fills."""

import threading
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

import pytest
from support.collector_cases import CASES
from support.recording import Flaky, rows_of

from collectors import COLLECTORS, Collector, Reading
from collectors.agent import Agent
from streams.topics import TELEMETRY
from telemetry.codec import Encoder
from telemetry.errors import EndOfInput, NoData
from telemetry.metrics import METRICS, SAMPLED
from telemetry.tables import EVENTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "collectors.md"
MAX_CALLS = 20


def readings(collector: Collector) -> list[Reading]:
    """What a few calls give."""
    found: list[Reading] = []
    for _ in range(MAX_CALLS):
        try:
            found.append(collector.collect())
        except NoData:
            continue
        except EndOfInput:
            break
    return found


@pytest.fixture(params=sorted(COLLECTORS))
def collector(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Collector]:
    """Each collector in turn, over its example."""
    made = CASES[request.param](tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("name", sorted(COLLECTORS))
def test_every_listed_collector_is_there_and_has_an_example(name: str, tmp_path: Path) -> None:
    """The name leads to a class with the contract's two methods, and the contract tests run over it."""
    made = CASES[name](tmp_path)
    assert isinstance(made, resolve_name(COLLECTORS[name]))
    assert callable(made.collect)
    made.close()


def test_batches_are_well_formed(collector: Collector) -> None:
    """Equal lengths, GPUs that exist, metrics of the catalogue, a message that can be made of it."""
    batches = [batch for reading in readings(collector) for batch in reading.samples]
    assert batches
    sampled = {metric.name for metric in SAMPLED}
    for batch in batches:
        assert batch.node
        assert batch.source
        assert batch.interval_s >= 0
        assert len(set(batch.gpus)) == len(batch.gpus) > 0
        assert set(batch.columns) <= sampled
        assert {len(batch.gpu), *(len(values) for values in batch.columns.values())} == {len(batch)}
        assert max(batch.gpu) < len(batch.gpus)
        assert Encoder().encode(batch).value


def test_values_are_in_the_catalogue_s_range(collector: Collector) -> None:
    """Garbage is taken out at the source: what comes out is in range or null."""
    for reading in readings(collector):
        for batch in reading.samples:
            for name, values in batch.columns.items():
                metric = METRICS[name]
                known = [value for value in values if value is not None]
                low = 0 if metric.low is None else metric.low
                assert all(value >= low for value in known), name
                assert metric.high is None or all(value <= metric.high for value in known), name


def test_time_goes_forward_for_each_gpu(collector: Collector) -> None:
    """No GPU has two samples of one time in a batch, or an older one after a newer one."""
    for reading in readings(collector):
        for batch in reading.samples:
            last: dict[int, int] = {}
            for index, time_ns in zip(batch.gpu, batch.time_ns, strict=True):
                assert last.get(index, 0) < time_ns
                last[index] = time_ns


def test_inventory_names_each_gpu_once(collector: Collector) -> None:
    """Where there is inventory, every sampled GPU of its node is in it under the same UUID, each once."""
    listed: dict[str, list[str]] = {}
    for reading in readings(collector):
        for record in reading.inventory:
            listed[record.node] = [gpu.gpu_uuid for gpu in record.gpus]
            assert len(set(listed[record.node])) == len(listed[record.node])
            assert len({gpu.slot for gpu in record.gpus}) == len(record.gpus)
        for batch in reading.samples:
            assert set(batch.gpus) <= set(listed.get(batch.node, batch.gpus))


def test_events_are_of_the_known_kinds(collector: Collector) -> None:
    """An event's kind is one that the table names."""
    kinds = next(column.help for column in EVENTS.columns if column.name == "kind")
    for reading in readings(collector):
        assert all(event.kind in kinds for event in reading.events)
        assert all(":" in reason and count > 0 for reason, count in reading.rejected.items())


def test_closing_twice_is_harmless(collector: Collector) -> None:
    """The agent closes on every way out."""
    readings(collector)
    collector.close()
    collector.close()


def test_the_agent_delivers_every_sample(collector: Collector) -> None:
    """Through the agent's loop as many rows reach the log as the collector gave."""
    given = 0
    collect = collector.collect

    class Counted:
        def collect(self) -> Reading:
            nonlocal given
            if self.calls == MAX_CALLS:
                raise EndOfInput("enough")
            self.calls += 1
            reading = collect()
            given += sum(len(batch) for batch in reading.samples)
            return reading

        def close(self) -> None:
            collector.close()

        calls = 0

    producer = Flaky()
    Agent(collectors={"counted": (Counted(), 0.0)}, producer=producer, node="n1").run(threading.Event())
    assert given > 0
    assert sum(rows_of(message) for message in producer.sent if message.topic == TELEMETRY) == given


def filled_table(tmp_path: Path) -> str:
    """The table of docs/collectors.md: which collector fills which metric."""
    simulated = {
        name for reading in readings(CASES["simulated"](tmp_path)) for b in reading.samples for name in b.columns
    }
    lines = [
        "| metric | `dcgm` | `nvml` | `nvidia_smi` XML | `nvidia_smi` CSV | `simulated` |",
        "|---|---|---|---|---|---|",
    ]
    for metric in SAMPLED:
        marks = (
            metric.dcgm_names != (),
            bool(metric.nvml),
            bool(metric.smi_xml),
            bool(metric.smi_query),
            metric.name in simulated,
        )
        lines.append(f"| `{metric.name}` | " + " | ".join("yes" if mark else "" for mark in marks) + " |")
    return "\n".join(lines)


def test_the_page_says_what_each_collector_fills(tmp_path: Path) -> None:
    """docs/collectors.md names every collector and holds the table as the code makes it."""
    page = PAGE.read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in COLLECTORS)
    table = filled_table(tmp_path)
    assert table in page, f"the table in docs/collectors.md is old; it should be:\n{table}"
