"""A file or a Prometheus's history into a store: the same jobs over the in-memory transport, to the end of the input.

To add a kind of file: recognise it in `import_file`, send it as messages; the jobs do the rest.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import polars as pl
from rich.console import Console

from analytics.column_names import guess_columns
from analytics.recorded import batches, is_telemetry
from analytics.table_file import RejectedRow, TableFile, scan
from analytics.tabular import measurements
from analytics.topology import read_topology
from isotach import history
from isotach.local import LocalSite
from isotach.process import Roles, stop_on_signals
from isotach.prometheus import Prometheus
from isotach.recorded import RecordedClock, Rejected, progress
from isotach.roles import start_ns
from isotach.settings import read_token
from streams import Outgoing, TopicPartition
from streams import score as score_job
from streams import window as window_job
from streams.place import Place
from streams.records import encode_rows
from streams.topics import DEADLETTER, EVENTS, INVENTORY, JOBS, MEASUREMENTS, SCORES, TELEMETRY, TRANSITIONS, WINDOWS
from telemetry import tables
from telemetry.codec import Encoder
from telemetry.errors import IsotachError, SettingsError
from telemetry.records import SampleBatch

RECORDED = {"breaker_ratio": 1.0}  #: what lies in the past drains nothing: no breaker
LATENESS_S = 30.0
IDLE_S = 60.0
UNTIMED_NS = 0  #: what a row without a time is given first, plus its number
YEAR_2000_NS = 946_684_800 * 10**9
TIMES = frozenset({"ns", "us", "ms", "s", "sec", "second", "seconds", "min", "minutes", "h", "cycles", "kwh", "j"})
"""Units of which less is better; a unit per second, or any other, leaves the direction to be said."""


def import_file(
    file: Path,
    store: Path,
    *,
    columns: Mapping[str, str],
    workload_class: str,
    name: str | None,
    unit: str,
    lower_is_better: bool | None,
    interval_s: float | None,
    window_s: float,
    topology: Path | None,
) -> None:
    """Read the file into the store and say what was read; raises IsotachError when nothing of it could be used."""
    console = Console(stderr=True, soft_wrap=True)  # a path that is broken in two cannot be copied
    table = scan(file)
    places = None if topology is None else read_topology(topology)
    clock, rejected = RecordedClock(), Rejected()
    results = "value" in columns or bool(unit) or lower_is_better is not None
    if not results and is_telemetry(table.columns):
        source = batches(
            file, columns=columns, interval_s=interval_s, source="import", report=lambda row: _add(rejected, row)
        )
        messages, what = _telemetry_messages(source, clock), "samples"
    else:
        messages = _measurement_messages(
            table,
            clock,
            rejected,
            columns=dict(columns) if "value" in columns else {**guess_columns(table.columns), **columns},
            workload_class=workload_class,
            unit=unit,
            higher_is_better=_higher_is_better(lower_is_better, unit),
            name=name or file.name.split(".")[0],
        )
        what = "measurements"
    _into_store(
        messages,
        store,
        where=str(file),
        what=what,
        total=table.total_rows,
        window_s=window_s,
        places=places,
        clock=clock,
        rejected=rejected,
        console=console,
    )


def import_history(
    url: str,
    store: Path,
    *,
    start: str,
    end: str,
    step_s: float,
    window_s: float,
    token_file: Path | None,
    topology: Path | None,
) -> None:
    """Read what a Prometheus has kept of dcgm-exporters into the store.

    Raises IsotachError that says what is wrong and, if something was read, where to go on.
    """
    console = Console(stderr=True, soft_wrap=True)
    now_ns = time.time_ns()
    start_s, end_s = (start_ns(text, now_ns=now_ns) / 1e9 for text in (start, end))
    if not start_s < end_s <= now_ns / 1e9 + 1:
        raise SettingsError("--start has to be before --end, and --end not in the future")
    start_s -= start_s % step_s  # the same moments whenever it is asked: what is imported twice is there once
    places = None if topology is None else read_topology(topology)
    clock, rejected = RecordedClock(), Rejected()
    found = history.messages(
        Prometheus(url, token=read_token("", token_file)),
        start_s=start_s,
        end_s=end_s,
        step_s=step_s,
        clock=clock,
        count=rejected.add_all,
        show=lambda text: console.print(text, highlight=False),
    )
    _into_store(
        found,
        store,
        where=url,
        what="samples",
        total=None,
        window_s=window_s,
        places=places,
        clock=clock,
        rejected=rejected,
        console=console,
    )


def _into_store(
    messages: Iterator[tuple[Outgoing, int]],
    store: Path,
    *,
    where: str,
    what: str,
    total: int | None,
    window_s: float,
    places: pl.DataFrame | None,
    clock: RecordedClock,
    rejected: Rejected,
    console: Console,
) -> None:
    first = next(messages, None)  # before the store: a file that cannot be used leaves none behind
    if first is None:
        rejected.report(console)
        raise IsotachError(f"{where}: none of its rows could be used")
    with (
        stop_on_signals() as stop,
        LocalSite(
            store, window_s=window_s, lateness_s=LATENESS_S, idle_s=IDLE_S, clock_ns=clock, thresholds=RECORDED
        ) as site,
    ):
        if places is not None:
            site.store.replace_topology(places)
        jobs = _Jobs(site, clock, window_s=window_s)
        read = jobs.run(itertools.chain([first], messages), stop, total=total)
        for rule, count in jobs.set_aside().items():
            rejected.add_all(rule, count)
        gpus = len(site.store.table("scores"))
    rejected.report(console)
    console.print(f"{read:,} {what} read; the store {store} now ranks {gpus:,} GPUs", highlight=False)
    console.print(f"isotach rank --store {store}", highlight=False)


def _add(rejected: Rejected, row: RejectedRow) -> None:
    rejected.add(row.row, row.rule, row.detail)


def _higher_is_better(lower_is_better: bool | None, unit: str) -> bool:
    if lower_is_better is not None:
        return not lower_is_better
    if unit.strip().lower() in TIMES:
        return False
    raise SettingsError("say which way is better: --lower-is-better for times, --higher-is-better for throughputs")


def _telemetry_messages(source: Iterator[SampleBatch], clock: RecordedClock) -> Iterator[tuple[Outgoing, int]]:
    encoder = Encoder()
    for batch in source:
        clock.reach(max(batch.time_ns))
        encoded = encoder.encode(batch)
        yield Outgoing(topic=TELEMETRY, key=encoded.key, headers=encoded.headers, value=encoded.value), len(batch)


def _measurement_messages(
    table: TableFile,
    clock: RecordedClock,
    rejected: Rejected,
    *,
    columns: Mapping[str, str],
    workload_class: str,
    unit: str,
    higher_is_better: bool,
    name: str,
) -> Iterator[tuple[Outgoing, int]]:
    now_ns = time.time_ns()
    for chunk in table.chunks():
        good, bad = measurements(
            chunk,
            columns=columns,
            workload_class=workload_class,
            unit=unit,
            higher_is_better=higher_is_better,
            name=name,
            default_time_ns=UNTIMED_NS,
        )
        for row in bad:
            _add(rejected, row)
        good = _timed(good, now_ns=now_ns)
        if len(good):
            clock.reach(int(good.select(pl.col("time_ns").max()).item()))
        for message in encode_rows(tables.MEASUREMENTS, good, topic=MEASUREMENTS, key="subject"):
            yield message, 1
    for row in table.rejected:  # lines that are no rows
        _add(rejected, row)


def _timed(rows: pl.DataFrame, *, now_ns: int) -> pl.DataFrame:
    """Rows without a time get the newest time of their neighbours, in order; now, if none has one."""
    untimed = pl.col("time_ns") < YEAR_2000_NS
    newest = pl.col("time_ns").filter(~untimed).max().fill_null(now_ns)
    return rows.with_columns(pl.when(untimed).then(newest + pl.col("time_ns")).otherwise("time_ns").alias("time_ns"))


class _Jobs:
    """Runs a site's jobs until everything that was sent has come out in the store."""

    def __init__(self, site: LocalSite, clock: RecordedClock, *, window_s: float) -> None:
        self._site = site
        self._clock = clock
        self._window_s = window_s
        self._letters = site.transport.ends(DEADLETTER)
        self._read_from = sum(
            place.offset for place in site.transport.committed(window_job.GROUP, list(self._ends(TELEMETRY))).values()
        )

    def run(self, messages: Iterator[tuple[Outgoing, int]], stop: threading.Event, *, total: int | None) -> int:
        """Send all, wait until all is stored; the number of rows sent. Raises the error of a job that failed."""
        roles = Roles(stop)
        self._site.start(roles)
        producer = self._site.transport.producer(client_id="import")
        sent, telemetry = 0, False
        try:
            with progress("reading", total) as done:
                for message, rows in messages:
                    if stop.is_set():
                        raise IsotachError("stopped before the end of the file; what was read is kept")
                    producer.send(message)
                    sent += rows
                    telemetry = telemetry or message.topic == TELEMETRY
                    done(rows)
            producer.flush()
            with progress("scoring", None):
                if telemetry:
                    self._wait(self._read_all, stop)
                    self._clock.advance(IDLE_S + LATENESS_S + self._window_s + 1)
                self._wait(lambda: self._settled(telemetry=telemetry), stop)
        finally:
            stop.set()
            roles.join()
        return sent

    def set_aside(self) -> Mapping[str, int]:
        """Rows that the jobs refused, by rule (a whole message counts as one)."""
        counts: dict[str, int] = {}
        reader = self._site.transport.read(self._letters)
        while not reader.caught_up():
            for letter in reader.poll(timeout_s=0.1):
                rule = letter.headers.get("rule", b"unknown").decode(errors="replace")
                counts[rule] = counts.get(rule, 0) + 1
        reader.close()
        return counts

    def _wait(self, condition: Callable[[], bool], stop: threading.Event) -> None:
        while not condition():
            if stop.wait(0.02):
                raise IsotachError("stopped before everything was scored; run the same import again to finish")

    def _ends(self, topic: str) -> Mapping[TopicPartition, int]:
        return self._site.transport.ends(topic)

    def _read_all(self) -> bool:
        """Whether the window job has read every message: only then may the clock run on and close the last windows."""
        there = sum(self._ends(TELEMETRY).values()) - self._read_from
        return self._site.counters.value("messages", TELEMETRY) >= there

    def _settled(self, *, telemetry: bool) -> bool:
        """Whether no window is open, and what came of the closed ones is scored and stored."""
        transport = self._site.transport
        if telemetry:
            if self._site.counters.value("open_rows"):  # the window job has not yet seen that the clock ran on
                return False
            ends_read = self._ends(TELEMETRY)
            committed = transport.committed(window_job.GROUP, list(ends_read))
            if any(end and Place.parse(committed.get(tp)).position < end for tp, end in ends_read.items()):
                return False
        ends: dict[TopicPartition, int] = {}
        for topic in (WINDOWS, EVENTS, MEASUREMENTS):
            ends |= transport.ends(topic)
        scored = transport.committed(score_job.GROUP, list(ends))
        if any(end and (tp not in scored or scored[tp].offset < end) for tp, end in ends.items()):
            return False
        for topic in (SCORES, TRANSITIONS, INVENTORY, JOBS):
            ends |= transport.ends(topic)
        _, stored = self._site.store.places()
        return all(stored.get((tp.topic, tp.partition), 0) >= end for tp, end in ends.items() if end)
