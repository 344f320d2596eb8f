"""What a step brings, read once: which window is new, which events and results are, and which GPUs they speak of.

To add an input: a field of `Step`, filled in `read_step`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import polars as pl

from analytics import book, holds, measured
from analytics.book import Book
from analytics.features import merge_parts
from analytics.keys import beside, by_gpu, in_order, known_in_order, rows_of
from analytics.policy import Policy
from analytics.state import State, newcomers, ordered
from analytics.thresholds import Thresholds
from telemetry.tables import EVENTS, GPUS, MEASUREMENTS, NODES, WINDOWS, Table

DEFAULT_WINDOW_S = 60.0
_BEFORE = ("node", "peer_group", "power_limit_w", "stale")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step's input. Frames are in the order of `gpu`."""

    state: State  #: with newcomers, and everyone's node as it is now
    book: Book  #: the inventory, open at the state's rows
    windows: pl.DataFrame | None  #: the new window, `gpu` in place of gpu_uuid; None if there is none
    window_start_ns: int
    window_s: float
    as_of_ns: int
    now_ns: int | None  #: where time stands; None: events and results only, time says nothing
    whole: bool  #: speeds of all GPUs are computed again
    before: pl.DataFrame  #: what the rows said before, for comparison, one row each
    node_gpus: pl.DataFrame  #: node, gpu: who sits where; empty where nothing in the step asks
    results: pl.DataFrame  #: new results only
    holds: pl.DataFrame  #: from events and from the window
    touched: pl.DataFrame  #: gpu, touched_ns: GPUs that something speaks of, and when
    absent: pl.Series  #: rows whose telemetry is expected in this window and not there

    @property
    def window_end_ns(self) -> int:
        """End of the window."""
        return self.window_start_ns + round(self.window_s * 1e9)

    @property
    def clock_ns(self) -> int:
        """Where time stands for what ends by itself: in a step of events, where the last window left it."""
        return self.window_end_ns if self.now_ns is None else self.now_ns


def read_step(
    state: State,
    *,
    windows: pl.DataFrame | None,
    window_start_ns: int | None,
    events: pl.DataFrame,
    measurements: pl.DataFrame,
    gpus: pl.DataFrame,
    nodes: pl.DataFrame,
    as_of_ns: int,
    limits: Thresholds,
    policy: Policy,
) -> Step | None:
    """The step, or None when it brings nothing: a window at or before the last one, and no events or results."""
    for table, frame in ((EVENTS, events), (MEASUREMENTS, measurements), (GPUS, gpus), (NODES, nodes)):
        check(table, frame.columns)
    fresh, start = _fresh(state, windows, window_start_ns)
    quiet = events.is_empty() and measurements.is_empty()
    if fresh is None and windows is not None and quiet:
        return None
    window_s = _window_s(fresh, state)
    now_ns = as_of_ns if fresh is not None or (windows is None and quiet) else None
    opened = book.read(state.book, gpus=gpus, nodes=nodes, uuids=state.uuids)
    seats = None if quiet and not holds.any_lost(state.holds) else _seats(opened.listed, fresh, state)
    told = events.select("gpu_uuid", "node", "kind", "code", "time_ns", pl.lit(value=False).alias("whole"))
    brought = pl.DataFrame(schema=measured.BROUGHT)
    if seats is not None:
        told, brought = holds.of_events(events, seats), measured.of_measurements(measurements, seats).unique()
    reset = told.filter(pl.col("kind").is_in(list(holds.RESETS)))
    named = _named(told, measurements, brought)
    overdue = _overdue(opened.others, now_ns, window_s, limits)
    state, opened, closed, before = _in_place(state, opened, fresh, named, reset, overdue)
    uuids = state.uuids
    results = by_gpu(brought, uuids)
    if not results.is_empty():
        results = results.join(state.results, on=list(measured.RESULTS), how="anti").sort(
            *measured.SERIES, "time_ns", "value"
        )
    held = by_gpu(holds.from_events(told, policy), uuids)
    if closed is not None:
        held = pl.concat([held, holds.from_windows(closed)])
    speaking = by_gpu(told.select("gpu_uuid", "time_ns"), uuids)
    return Step(
        state=state,
        book=opened,
        windows=closed,
        window_start_ns=start,
        window_s=window_s,
        as_of_ns=as_of_ns,
        now_ns=now_ns,
        whole=fresh is not None or not results.is_empty() or now_ns is not None,
        before=before,
        node_gpus=pl.DataFrame(schema={"node": pl.String, "gpu": pl.UInt32}) if seats is None else by_gpu(seats, uuids),
        results=results,
        holds=held,
        touched=_touches(closed, start, window_s, [speaking, results.select("gpu", "time_ns")], as_of_ns),
        absent=_absent(state.gpus, closed),
    )


def check(table: Table, columns: Iterable[str]) -> None:
    """Raises ValueError where a frame lacks columns of its table."""
    lacking = [name for name in table.names if name not in set(columns)]
    if lacking:
        raise ValueError(f"{table.name} lack the columns {lacking}")


def _fresh(state: State, windows: pl.DataFrame | None, window_start_ns: int | None) -> tuple[pl.DataFrame | None, int]:
    """The window if it is a new one, and its start."""
    if windows is None:
        return None, state.last_window_ns
    check(WINDOWS, windows.columns)
    starts = set(windows["window_start_ns"].unique().to_list())
    if window_start_ns is None:
        if len(starts) != 1:
            raise ValueError(f"windows of {len(starts)} starts, and none was named")
        window_start_ns = int(starts.pop())
    elif starts - {window_start_ns}:
        raise ValueError(f"window {window_start_ns} holds rows of {sorted(starts - {window_start_ns})[:3]}")
    if window_start_ns <= state.last_window_ns:
        return None, state.last_window_ns
    return windows.select(WINDOWS.names), window_start_ns


def _window_s(fresh: pl.DataFrame | None, state: State) -> float:
    lengths = state.gpus["window_s"] if fresh is None or fresh.is_empty() else fresh["window_s"]
    longest = lengths.max()
    return float(longest) if isinstance(longest, float) else DEFAULT_WINDOW_S


def _seats(listed: pl.DataFrame, fresh: pl.DataFrame | None, state: State) -> pl.DataFrame:
    """node, gpu_uuid: who sits where now: the inventory, and for nodes without one whoever reported there."""
    known = listed.select(pl.col("inventory_node").alias("node"), "gpu_uuid")
    seen = [state.gpus.select("node", "gpu_uuid")]
    if fresh is not None:
        seen.insert(0, fresh.select("node", "gpu_uuid"))
    others = pl.concat(seen).filter(pl.col("node").is_not_null())
    others = others.join(known, on="node", how="anti").join(known, on="gpu_uuid", how="anti")
    return pl.concat([known, others.unique("gpu_uuid", keep="first", maintain_order=True)]).sort("node", "gpu_uuid")


def _named(told: pl.DataFrame, measurements: pl.DataFrame, brought: pl.DataFrame) -> pl.DataFrame:
    """gpu_uuid, told_node: GPUs that events and results speak of, each once, with the node they say."""
    of_gpus = measurements.filter(pl.col("scope") == "gpu").select(pl.col("subject").alias("gpu_uuid"), "node")
    nowhere = brought.select("gpu_uuid", pl.lit(None, dtype=pl.String).alias("node"))
    parts = pl.concat([told.select("gpu_uuid", "node"), of_gpus, nowhere])
    return parts.group_by("gpu_uuid", maintain_order=True).agg(pl.col("node").max().alias("told_node"))


def _in_place(
    state: State, opened: Book, fresh: pl.DataFrame | None, named: pl.DataFrame, reset: pl.DataFrame,
    overdue: pl.Series,
) -> tuple[State, Book, pl.DataFrame | None, pl.DataFrame]:  # fmt: skip
    """The state with newcomers, with the node and the newest reset of everyone; the book and the window by its rows;
    and what the rows said before."""
    at = None if fresh is None else rows_of(state.uuids, fresh["gpu_uuid"])
    unknown = _unknown(state, fresh, at, pl.concat([named["gpu_uuid"], overdue]))
    gpus, uuids = state.gpus, state.uuids
    if not unknown.is_empty():
        gpus = known_in_order(pl.concat([gpus, newcomers(unknown, after=len(gpus))]))
        uuids, at = gpus["gpu_uuid"], None
        opened = book.read(opened, gpus=opened.gpus, nodes=opened.nodes, uuids=uuids)
    closed = None if fresh is None else _closed(fresh, uuids, at)
    before = gpus.select(pl.col(name).alias(f"{name}_before") for name in _BEFORE)
    gpus = _reset(_at_node(gpus, opened, closed, named), reset)
    if unknown.is_empty() and gpus["node"].equals(before["node_before"], null_equal=True):
        return replace(state, gpus=gpus), opened, closed, before
    moved = ordered(state, gpus.hstack(before))
    before = moved.gpus.select(before.columns)
    opened = book.read(opened, gpus=opened.gpus, nodes=opened.nodes, uuids=moved.uuids)
    closed = None if fresh is None else _closed(fresh, moved.uuids)
    return replace(moved, gpus=moved.gpus.drop(before.columns)), opened, closed, before


def _closed(fresh: pl.DataFrame, uuids: pl.Series, at: pl.Series | None = None) -> pl.DataFrame:
    """The window by row, several parts of one GPU made one; `at`: the rows, where they are known."""
    rows = by_gpu(fresh, uuids, at)
    twice = rows.select((pl.col("gpu") == pl.col("gpu").shift(1)).any()).item()
    return by_gpu(merge_parts(fresh), uuids) if twice else rows


def _unknown(state: State, fresh: pl.DataFrame | None, at: pl.Series | None, others: pl.Series) -> pl.DataFrame:
    """gpu_uuid of GPUs that have no row yet; `at`: where the window's are."""
    wanted = [others.to_frame("gpu_uuid").filter(rows_of(state.uuids, others).is_null())]
    if fresh is not None and at is not None:
        wanted.append(fresh.select("gpu_uuid").filter(at.is_null()))
    return pl.concat(wanted).unique().sort("gpu_uuid")


def _overdue(others: pl.DataFrame, now_ns: int | None, window_s: float, limits: Thresholds) -> pl.Series:
    """GPUs of the inventory without a row, unheard of for longer than the stale limit: unknown, not unseen."""
    if now_ns is None:
        return others["gpu_uuid"].clear()
    before = now_ns - round(limits.stale_windows * window_s * 1e9)
    return others.filter(pl.col("seen_ns") < before)["gpu_uuid"]


def _at_node(gpus: pl.DataFrame, opened: Book, closed: pl.DataFrame | None, named: pl.DataFrame) -> pl.DataFrame:
    """Everyone's node: as the window says, the inventory, the row itself, or an event or result."""
    nodes = [opened.rows["inventory_node"], gpus["node"]]
    if closed is not None:
        there = closed.select("gpu", pl.col("node").alias("_here"))
        nodes.insert(0, beside(gpus.select("gpu"), there)["_here"])
    if not named.is_empty():
        told = by_gpu(named, gpus["gpu_uuid"])
        nodes.append(beside(gpus.select("gpu"), told)["told_node"])
    return gpus.with_columns(pl.coalesce(pl.lit(one) for one in nodes).alias("node"))


def _reset(gpus: pl.DataFrame, reset: pl.DataFrame) -> pl.DataFrame:
    if reset.is_empty():
        return gpus
    newest = by_gpu(reset.group_by("gpu_uuid").agg(pl.col("time_ns").max().alias("_reset_ns")), gpus["gpu_uuid"])
    rows = beside(gpus, newest)
    return rows.with_columns(pl.max_horizontal("reset_ns", "_reset_ns").alias("reset_ns")).drop("_reset_ns")


def _touches(
    closed: pl.DataFrame | None, start: int, window_s: float, others: Sequence[pl.DataFrame], as_of_ns: int
) -> pl.DataFrame:
    parts = [part for part in others if not part.is_empty()]
    if closed is not None:
        end = pl.lit(start + round(window_s * 1e9), dtype=pl.Int64)
        parts.append(closed.select("gpu", end.alias("time_ns")))
    if not parts:
        return pl.DataFrame(schema={"gpu": pl.UInt32, "touched_ns": pl.Int64})
    touched = pl.concat(parts)
    if len(parts) > 1 or closed is None:
        touched = touched.group_by("gpu").agg(pl.col("time_ns").max())
    return in_order(touched.select("gpu", pl.col("time_ns").clip(upper_bound=as_of_ns).alias("touched_ns")))


def _absent(gpus: pl.DataFrame, closed: pl.DataFrame | None) -> pl.Series:
    expected = gpus.select("gpu", ((pl.col("window_start_ns") > 0) & ~pl.col("stale")).alias("expected"))
    if closed is None:
        return pl.Series("gpu", [], dtype=pl.UInt32)
    here = closed.select("gpu", pl.lit(value=True).alias("_here"))
    rows = beside(expected, here)
    return rows.filter(pl.col("expected") & pl.col("_here").is_null())["gpu"]
