"""Recorded telemetry, one row per GPU and time, as sample batches: what collectors would have sent.

To read another layout: make it one row per GPU and time, then call `telemetry`.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import polars as pl

from analytics.cells import texts, times_ns
from analytics.column_names import check_columns, find_roles, normal
from analytics.frames import dtype
from analytics.identity import gpu_identity, node_names
from analytics.metric_columns import MetricColumn, converted, metric_columns
from analytics.table_file import ROW, RejectedRow, scan
from telemetry.codec import MAX_GPUS
from telemetry.errors import BadInput
from telemetry.records import SampleBatch

BATCH_S = 10.0
"""Length of a batch: what an agent sends as one message."""

DEFAULT_INTERVAL_S = 1.0
"""Interval promised for a recording in which no GPU has two samples."""

MAX_SORTED_ROWS = 20_000_000
"""Rows of a recording that is not in time order: it has to be held and sorted, ~200 bytes a row."""

_RESULTS = frozenset(("value", "perf", "performance", "result", "score", "throughput"))
_ROLES = ("gpu", "node", "time")


def is_telemetry(columns: Sequence[str]) -> bool:
    """Whether these are columns of recorded telemetry: a GPU, a time, a metric, and no result of a benchmark."""
    roles = _roles(columns)
    metrics, _ = metric_columns([column for column in columns if column not in roles.values()])
    return "gpu" in roles and "time" in roles and bool(metrics) and not _RESULTS & {normal(name) for name in columns}


def telemetry(
    table: pl.DataFrame,
    *,
    columns: Mapping[str, str] | None = None,
    node: str | None = None,
    interval_s: float | None = None,
    source: str = "import",
) -> tuple[Iterator[SampleBatch], list[RejectedRow]]:
    """Batches of a node and ten seconds in time order, and what could not be used.

    `columns` says which column is the gpu, the node, the time; guessed where it does not. `node` names the node where
    no column does. Metrics are columns with a name of ours, of DCGM or of nvidia-smi, values in the units of that
    source or in the unit that header or cell names. Rows without GPU, node or time are rejected one by one; bad values
    become null and are summed up as `metric:reason` with the first row; columns that are no metric as `unknown_column`
    of row 0. `interval_s` is inferred from the times if not given. Raises BadInput if no metric or no GPU is there.
    """
    reader = _Reader([c for c in table.columns if c != ROW], columns=columns, node=node)
    samples = reader.read(table)
    interval = interval_s or _interval_s(samples)
    ordered = samples.sort("slot", "node", "time_ns", "gpu_uuid")
    return _batches(ordered, interval_s=interval, source=source), [*reader.rejected, *reader.summary()]


def batches(
    path: Path,
    *,
    columns: Mapping[str, str] | None = None,
    node: str | None = None,
    interval_s: float | None = None,
    source: str = "replay",
    report: Callable[[RejectedRow], None] | None = None,
) -> Iterator[SampleBatch]:
    """`telemetry` of a whole file, in time order whatever the file's order is.

    Reads the file twice: a recording in time order is then streamed, another one is held and sorted, if it has no
    more than `MAX_SORTED_ROWS` rows. `report` is called once for everything that could not be used.
    """
    table = scan(path)
    reader = _Reader(table.columns, columns=columns, node=node)
    rows, in_order = _survey(reader, table.chunks())
    if not in_order and rows > MAX_SORTED_ROWS:
        raise BadInput("not_in_time_order", f"{path} has {rows} rows and is not in time order: sort it by time first")
    held: list[pl.DataFrame] = []
    interval = interval_s
    for chunk in table.chunks():
        held.append(reader.read(chunk))
        for rejected in reader.rejected:
            _tell(report, rejected)
        reader.rejected.clear()
        if not in_order:
            continue
        samples = pl.concat(held)
        interval = interval or (_interval_s(samples) if samples.height else None)
        last = samples["slot"].max()
        done = samples.filter(pl.col("slot") != last)
        held = [samples.filter(pl.col("slot") == last)]
        yield from _sorted_batches(done, interval or DEFAULT_INTERVAL_S, source)
    if held:
        samples = pl.concat(held)
        yield from _sorted_batches(samples, interval or _interval_s(samples), source)
    for rejected in (*table.rejected, *reader.summary()):
        _tell(report, rejected)


def _tell(report: Callable[[RejectedRow], None] | None, rejected: RejectedRow) -> None:
    if report is not None:
        report(rejected)


def _sorted_batches(samples: pl.DataFrame, interval_s: float, source: str) -> Iterator[SampleBatch]:
    ordered = samples.sort("slot", "node", "time_ns", "gpu_uuid")
    return _batches(ordered, interval_s=interval_s, source=source)


def _survey(reader: "_Reader", chunks: Iterator[pl.DataFrame]) -> tuple[int, bool]:
    """Rows, and whether no chunk holds a row of a batch that an earlier chunk has finished."""
    rows, newest, in_order = 0, None, True
    for chunk in chunks:
        rows += chunk.height
        slots = times_ns(chunk[reader.roles["time"]]) // _slot_ns()
        low, high = slots.min(), slots.max()
        if isinstance(low, int) and isinstance(high, int):
            in_order = in_order and (newest is None or low >= newest)
            newest = high if newest is None else max(newest, high)
    return rows, in_order


def _slot_ns() -> int:
    return int(BATCH_S * 1e9)


def _roles(columns: Sequence[str]) -> dict[str, str]:
    found = {role: column for role, column in find_roles(columns).items() if role in _ROLES}
    by_name = {normal(column): column for column in columns}
    if "time" not in found and "time" in by_name:
        found["time"] = by_name["time"]
    return found


class _Reader:
    """Reads chunks of one file; remembers what could not be used."""

    def __init__(self, there: Sequence[str], *, columns: Mapping[str, str] | None, node: str | None) -> None:
        check_columns(columns or {}, there, _ROLES)
        self.roles = _roles(there) | dict(columns or {})
        if node is not None and "node" not in (columns or {}):
            self.roles.pop("node", None)
        taken = {part for column in self.roles.values() for part in column.split("+")} | set(self.roles.values())
        self._metrics, ignored = metric_columns([column for column in there if column not in taken])
        self._there = there
        self._node = node
        for role, remedy in (("gpu", "gpu=COLUMN"), ("time", "time=COLUMN")):
            if role not in self.roles:
                raise BadInput(
                    "ambiguous_columns", f"no column is clearly the {role}: say {remedy}, of {', '.join(there)}"
                )
        if "node" not in self.roles and node is None:
            raise BadInput("ambiguous_columns", "no column names the node: say node=COLUMN, or the node's name")
        if not self._metrics:
            raise BadInput("no_metrics", f"none of the columns {', '.join(there)} is a metric of the catalogue")
        self.rejected: list[RejectedRow] = []
        self._bad: Counter[str] = Counter()
        self._first: dict[str, tuple[int, str]] = {}
        if ignored:
            detail = f"no metrics, not read: {', '.join(ignored)}"
            self.rejected.append(RejectedRow(row=0, rule="unknown_column", detail=detail))

    def read(self, table: pl.DataFrame) -> pl.DataFrame:
        """slot, node, gpu_uuid, time_ns and every metric found, one row per row that names a GPU, a node, a time."""
        row = table[ROW] if ROW in table.columns else pl.Series(range(1, table.height + 1), dtype=pl.Int64)
        node = (
            node_names(table, self.roles["node"], self._there)
            if "node" in self.roles
            else pl.Series([self._node] * table.height, dtype=pl.String)
        )
        keys = pl.DataFrame(
            {
                "row": row,
                "node": node,
                "gpu": texts(table[self.roles["gpu"]]),
                "time_ns": times_ns(table[self.roles["time"]]),
            }
        ).with_columns(gpu_uuid=gpu_identity("gpu", "node"))
        gpu = pl.col("gpu_uuid")
        rule = (
            pl.when(pl.col("node").is_null())
            .then(pl.lit("no_node"))
            .when(gpu.is_null())
            .then(pl.lit("no_gpu"))
            .when(gpu.str.contains(",") | (gpu.str.len_chars() > 253) | (pl.col("node").str.len_chars() > 253))
            .then(pl.lit("bad_name"))
            .when(gpu.str.starts_with("MIG-"))
            .then(pl.lit("mig_slice"))
            .when(pl.col("time_ns").is_null())
            .then(pl.lit("bad_time"))
        )
        keys = keys.with_columns(rule=rule)
        for number, name, which in keys.filter(pl.col("rule").is_not_null()).select("row", "rule", "gpu").iter_rows():
            self.rejected.append(RejectedRow(row=number, rule=name, detail=f"gpu {which!r}"))
        samples = keys.with_columns(slot=pl.col("time_ns") // _slot_ns())
        samples = samples.with_columns(self._values(table, keys)).filter(pl.col("rule").is_null())
        return samples.drop("row", "gpu", "rule")

    def _values(self, table: pl.DataFrame, keys: pl.DataFrame) -> list[pl.Series]:
        found: dict[str, pl.Series] = {}
        for source in self._metrics:
            result = converted(table[source.column], source)
            self._count(source, table[source.column], result["reason"], keys)
            value = result["value"]
            name = source.metric.name
            if name in found:
                value = found[name].zip_with(found[name].is_not_null(), value)
            found[name] = value.alias(name)
        return list(found.values())

    def _count(self, source: MetricColumn, cells: pl.Series, reason: pl.Series, keys: pl.DataFrame) -> None:
        if reason.null_count() == len(reason):
            return
        bad = pl.DataFrame({"row": keys["row"], "reason": reason, "cell": cells.cast(pl.String, strict=False)})
        counts = bad.drop_nulls("reason").group_by("reason", maintain_order=True).agg(pl.len(), pl.all().first())
        for why, count, first, cell in counts.select("reason", "len", "row", "cell").iter_rows():
            rule = f"{source.metric.name}:{why}"
            self._bad[rule] += count
            self._first.setdefault(rule, (first, str(cell)))

    def summary(self) -> list[RejectedRow]:
        """One for each metric and reason, over everything read so far."""
        return [
            RejectedRow(
                row=self._first[rule][0], rule=rule, detail=f"{count} values, the first {self._first[rule][1]!r:.80}"
            )
            for rule, count in self._bad.items()
        ]


def _interval_s(samples: pl.DataFrame) -> float:
    """The median time between two samples of a GPU."""
    steps = samples.sort("gpu_uuid", "time_ns").select(pl.col("time_ns").diff().over("gpu_uuid")).to_series()
    middle = steps.filter(steps > 0).median()
    return round(middle / 1e9, 3) or 0.001 if isinstance(middle, float) else DEFAULT_INTERVAL_S


def _batches(ordered: pl.DataFrame, *, interval_s: float, source: str) -> Iterator[SampleBatch]:
    """One batch for each slot and node of samples in that order."""
    metrics = [name for name in ordered.columns if name not in ("slot", "node", "gpu_uuid", "time_ns")]
    start = 0
    for node, rows in (
        ordered.group_by("slot", "node", maintain_order=True).agg(pl.len()).select("node", "len").iter_rows()
    ):
        part = ordered.slice(start, rows)
        start += rows
        gpus = part["gpu_uuid"].unique(maintain_order=True)
        if len(gpus) > MAX_GPUS:
            raise BadInput("too_many_gpus", f"node {node!r} has {len(gpus)} GPUs: is that the right node column?")
        index = part["gpu_uuid"].replace_strict(gpus, range(len(gpus)), return_dtype=dtype("uint16"))
        columns = {name: part[name] for name in metrics}
        yield SampleBatch(
            node=node,
            gpus=tuple(gpus.to_list()),
            interval_s=interval_s,
            source=source,
            time_ns=part["time_ns"].to_list(),
            gpu=index.to_list(),
            columns={name: values.to_list() for name, values in columns.items() if values.null_count() < rows},
        )
