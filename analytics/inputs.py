"""What a step brings, read once: which window is new, which events and results are, and which GPUs they speak of.

To add an input: a field of `Step`, filled in `read_step`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from analytics import holds, measured
from analytics.features import merge_parts
from analytics.policy import Policy
from analytics.state import State, newcomers
from analytics.thresholds import Thresholds
from telemetry.tables import EVENTS, GPUS, MEASUREMENTS, NODES, WINDOWS, Table

DEFAULT_WINDOW_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step's input. Frames are sorted by gpu_uuid."""

    windows: pl.DataFrame | None  #: the new window; None if there is none
    window_start_ns: int
    window_s: float
    as_of_ns: int
    now_ns: int | None  #: where time stands; None: events and results only, time says nothing
    whole: bool  #: speeds of all GPUs are computed again
    gpus: pl.DataFrame  #: rows of the state with newcomers, and `told_node`
    before: pl.DataFrame  #: what the rows said before, for comparison
    #: gpu_uuid, inventory_node, model, memory_total_bytes, inventory_limit_w, power_limit_default_w, mig_enabled, slot,
    #: driver_version
    inventory: pl.DataFrame
    node_gpus: pl.DataFrame  #: node, gpu_uuid: who sits where
    missing: pl.DataFrame  #: nodes that show fewer GPUs than expected
    results: pl.DataFrame  #: new results only
    holds: pl.DataFrame  #: from events and from the window
    touched: pl.DataFrame  #: gpu_uuid, touched_ns: GPUs that something speaks of, and when

    @property
    def window_end_ns(self) -> int:
        """End of the window."""
        return self.window_start_ns + round(self.window_s * 1e9)

    @property
    def clock_ns(self) -> int:
        """Where time stands for what ends by itself: in a step of events, where the last window left it."""
        return self.window_end_ns if self.now_ns is None else self.now_ns

    def absent(self) -> pl.Expr:
        """True for a GPU whose telemetry is expected in this window and not there (column of state rows)."""
        if self.windows is None:
            return pl.lit(value=False)
        here = pl.col("gpu_uuid").is_in(self.windows["gpu_uuid"].implode())
        return ~here & (pl.col("window_start_ns") > 0) & ~pl.col("stale")


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
    inventory = _inventory(gpus)
    seats = _seats(inventory, fresh, state)
    told = holds.of_events(events, seats)
    brought = measured.of_measurements(measurements, seats)
    results = brought.unique().join(state.results, on=list(measured.RESULTS), how="anti")
    held = holds.from_events(told, policy)
    if fresh is not None:
        held = pl.concat([held, holds.from_windows(fresh)])
    named = _named(fresh, told, measurements, brought)
    overdue = _overdue(inventory, gpus, now_ns, window_s, limits)
    unknown = pl.concat([named.select("gpu_uuid"), overdue]).unique().join(state.gpus, on="gpu_uuid", how="anti")
    rows = pl.concat([state.gpus, newcomers(unknown)]).sort("gpu_uuid")
    rows = _told(rows, named, told)
    touched_ns = pl.col("time_ns").max().clip(upper_bound=as_of_ns).alias("touched_ns")
    return Step(
        windows=fresh,
        window_start_ns=start,
        window_s=window_s,
        as_of_ns=as_of_ns,
        now_ns=now_ns,
        whole=fresh is not None or not results.is_empty() or now_ns is not None,
        gpus=rows,
        before=state.gpus.select(
            "gpu_uuid", *(pl.col(c).alias(f"{c}_before") for c in ("node", "peer_group", "power_limit_w", "stale"))
        ),
        inventory=inventory,
        node_gpus=seats,
        missing=nodes.filter(pl.col("seen_gpus") < pl.col("expected_gpus")).select("node").unique(),
        results=results.sort(*measured.SERIES, "time_ns", "value"),
        holds=held,
        touched=_touches(fresh, start, window_s, told, results).group_by("gpu_uuid").agg(touched_ns),
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
    return merge_parts(windows.select(WINDOWS.names)).sort("gpu_uuid"), window_start_ns


def _window_s(fresh: pl.DataFrame | None, state: State) -> float:
    lengths = state.gpus["window_s"] if fresh is None or fresh.is_empty() else fresh["window_s"]
    longest = lengths.max()
    return float(longest) if isinstance(longest, float) else DEFAULT_WINDOW_S


def _inventory(gpus: pl.DataFrame) -> pl.DataFrame:
    newest = gpus.sort("seen_ns", "node").unique("gpu_uuid", keep="last")
    return newest.select(
        "gpu_uuid",
        pl.col("node").alias("inventory_node"),
        "model",
        "memory_total_bytes",
        pl.coalesce("power_limit_w", "power_limit_default_w").alias("inventory_limit_w"),
        pl.col("power_limit_default_w").cast(pl.Float64),
        "mig_enabled",
        "slot",
        "driver_version",
    ).sort("gpu_uuid")


def _seats(inventory: pl.DataFrame, fresh: pl.DataFrame | None, state: State) -> pl.DataFrame:
    """Who sits where now: the inventory, and for nodes without one whoever reported there."""
    listed = inventory.select(pl.col("inventory_node").alias("node"), "gpu_uuid")
    seen = [state.gpus.select("node", "gpu_uuid")]
    if fresh is not None:
        seen.insert(0, fresh.select("node", "gpu_uuid"))
    others = pl.concat(seen).filter(pl.col("node").is_not_null())
    others = others.join(listed, on="node", how="anti").join(listed, on="gpu_uuid", how="anti")
    return pl.concat([listed, others.unique("gpu_uuid", keep="first", maintain_order=True)]).sort("node", "gpu_uuid")


def _named(
    fresh: pl.DataFrame | None, told: pl.DataFrame, measurements: pl.DataFrame, brought: pl.DataFrame
) -> pl.DataFrame:
    """GPUs that something in this step speaks of, with the node it says."""
    of_gpus = measurements.filter(pl.col("scope") == "gpu").select(pl.col("subject").alias("gpu_uuid"), "node")
    parts = [
        told.select("gpu_uuid", "node"),
        of_gpus,
        brought.select("gpu_uuid", pl.lit(None, dtype=pl.String).alias("node")),
    ]
    if fresh is not None:
        parts.append(fresh.select("gpu_uuid", "node"))
    return pl.concat(parts)


def _overdue(
    inventory: pl.DataFrame, gpus: pl.DataFrame, now_ns: int | None, window_s: float, limits: Thresholds
) -> pl.DataFrame:
    """GPUs of the inventory that nothing has spoken of for longer than the stale limit: unknown, not unseen."""
    if now_ns is None:
        return inventory.select("gpu_uuid").clear()
    before = now_ns - round(limits.stale_windows * window_s * 1e9)
    first = gpus.group_by("gpu_uuid").agg(pl.col("seen_ns").max()).filter(pl.col("seen_ns") < before)
    return first.select("gpu_uuid")


def _told(rows: pl.DataFrame, named: pl.DataFrame, told: pl.DataFrame) -> pl.DataFrame:
    """Rows with the node that events and results say, and with the newest reset."""
    nodes = named.filter(pl.col("node").is_not_null()).group_by("gpu_uuid").agg(pl.col("node").max().alias("told_node"))
    resets = told.filter(pl.col("kind").is_in(list(holds.RESETS))).group_by("gpu_uuid")
    newest = resets.agg(pl.col("time_ns").max().alias("_reset_ns"))
    rows = rows.join(nodes, on="gpu_uuid", how="left", maintain_order="left")
    rows = rows.join(newest, on="gpu_uuid", how="left", maintain_order="left")
    return rows.with_columns(pl.max_horizontal("reset_ns", "_reset_ns").alias("reset_ns")).drop("_reset_ns")


def _touches(
    fresh: pl.DataFrame | None, start: int, window_s: float, told: pl.DataFrame, results: pl.DataFrame
) -> pl.DataFrame:
    parts = [told.select("gpu_uuid", "time_ns"), results.select("gpu_uuid", "time_ns")]
    if fresh is not None:
        end = pl.lit(start + round(window_s * 1e9), dtype=pl.Int64)
        parts.append(fresh.select("gpu_uuid", end.alias("time_ns")))
    return pl.concat(parts)
