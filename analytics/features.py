"""Window features: one row a GPU and window, from its samples.

To add a feature: a column in `telemetry.tables.WINDOWS`, an expression in `_gauges` or a line in `analytics.counters`.
"""

from collections.abc import Sequence

import polars as pl

from analytics.activity import busy, workload_class
from analytics.counters import Groups, counter_features, cycle_clock
from analytics.frames import dtype, sample_schema, schema
from telemetry.metrics import ClockEvent
from telemetry.tables import WINDOWS

OVER_ALL_SAMPLES = frozenset(
    {
        "busy_ratio",
        "utilization_ratio",
        "hw_slowdown_ratio",
        "sw_thermal_ratio",
        "hw_thermal_ratio",
        "power_brake_ratio",
    }
)
"""Means that were taken over all samples: two parts are weighted by samples, not by busy samples."""

CHUNK_ROWS = 1_500_000  #: rows worked on at once: bounds memory, keeps columns near the cache

_BUSY_MEANS = {
    "memory_clock_mhz": "memory_clock_mhz",
    "sm_active_ratio": "sm_active_ratio",
    "tensor_active_ratio": "tensor_active_ratio",
    "dram_active_ratio": "dram_active_ratio",
    "_fp64": "fp64_active_ratio",
    "_fp32": "fp32_active_ratio",
    "_fp16": "fp16_active_ratio",
}
_SHARES = {
    "hw_slowdown_ratio": ClockEvent.HW_SLOWDOWN,
    "sw_thermal_ratio": ClockEvent.SW_THERMAL,
    "hw_thermal_ratio": ClockEvent.HW_THERMAL,
    "power_brake_ratio": ClockEvent.HW_POWER_BRAKE,
}
_BUSY_SHARES = {
    "sw_power_cap_ratio": ClockEvent.SW_POWER_CAP,
    "application_clocks_ratio": ClockEvent.APPLICATIONS_CLOCKS,
}


def window_features(samples: pl.DataFrame, *, window_ns: int, chunk_rows: int = CHUNK_ROWS) -> pl.DataFrame:
    """One row per gpu_uuid with the columns of WINDOWS; GPUs with nothing but a carry row give none.

    `samples`: the columns of `frames.sample_schema`, sorted by gpu_uuid and time_ns without duplicates; rows with
    `carry` belong to the window before and serve as counter base only, at most one a GPU; all others lie in one
    window. Unsupported is null. Raises ValueError for missing columns, for rows out of order and for several windows.
    """
    missing = [name for name in sample_schema() if name not in samples.columns]
    if missing:
        raise ValueError(f"samples lack the columns {missing}")
    if samples.is_empty():
        return pl.DataFrame(schema=schema(WINDOWS))
    groups = Groups.of(samples)
    time = pl.col("time_ns").filter(~pl.col("carry"))
    starts = samples.select(first=time.min() // window_ns, last=time.max() // window_ns)
    if not starts["first"].equals(starts["last"], null_equal=True):
        raise ValueError("samples lie in more than one window")
    return pl.concat(
        _chunk(samples.slice(start, length), window_ns=window_ns) for start, length in groups.chunks(chunk_rows)
    )


def _chunk(samples: pl.DataFrame, *, window_ns: int) -> pl.DataFrame:
    groups = Groups.of(samples)
    samples = samples.with_columns(groups.ids.set_sorted(), busy().alias("_busy"))
    counters = counter_features(samples, groups)
    clock = cycle_clock(samples)
    present = samples.filter(~pl.col("carry")) if samples["carry"].any() else samples
    present = present.with_columns(_power(), _utilization(), _nvlink(), _pcie())
    working = present.filter(pl.col("_busy"))
    every = _by_group(present, _gauges(window_ns))
    during = _by_group(working, _busy_gauges())
    frame = every.join(during, on="_group", how="left", maintain_order="left")
    frame = frame.join(counters, on="_group", how="left", maintain_order="left")
    frame = frame.join(clock, on="_group", how="left", maintain_order="left")
    return (
        frame.with_columns(*_joined(window_ns))
        .with_columns(workload_class=workload_class())
        .select(pl.col(column.name).cast(dtype(column.type)) for column in WINDOWS.columns)
    )


def _by_group(frame: pl.DataFrame, features: Sequence[pl.Expr]) -> pl.DataFrame:
    return frame.with_columns(pl.col("_group").set_sorted()).group_by("_group", maintain_order=True).agg(features)


def _power() -> pl.Expr:
    """The average where the driver gives it, else the instant value: row by row, so that no step comes of a change."""
    return pl.coalesce("power_w", "power_instant_w").alias("_power")


def _utilization() -> pl.Expr:
    return pl.coalesce("graphics_engine_active_ratio", "utilization_ratio").alias("_utilization")


def _nvlink() -> pl.Expr:
    both = pl.col("nvlink_tx_bytes_per_s") + pl.col("nvlink_rx_bytes_per_s")
    return pl.coalesce(both, "nvlink_bandwidth_bytes_per_s").alias("_nvlink")


def _pcie() -> pl.Expr:
    return (pl.col("pcie_tx_bytes_per_s") + pl.col("pcie_rx_bytes_per_s")).alias("_pcie")


def _bit(mask: int) -> pl.Expr:
    return pl.col("clock_event_reasons").and_(pl.lit(mask, dtype=pl.UInt64)) != 0


def _gauges(window_ns: int) -> list[pl.Expr]:
    """Features over all samples of the window."""
    reading = pl.struct("sm_clock_mhz", "_power", "temperature_c", "_utilization").hash()
    nothing = pl.all_horizontal(
        pl.col(name).is_null() for name in ("sm_clock_mhz", "_power", "temperature_c", "_utilization")
    )
    return [
        pl.col("gpu_uuid").first(),
        (pl.col("time_ns").first() // window_ns * window_ns).alias("window_start_ns"),
        pl.col("node").last(),
        pl.len().alias("samples"),
        pl.col("interval_s").cast(pl.Float64).sum().alias("_promised_s"),
        pl.col("_busy").sum().alias("busy_samples"),
        pl.col("_busy").mean().alias("busy_ratio"),
        pl.col("_power").mean().alias("_power_all"),
        pl.col("_power").max().alias("power_max_w"),
        pl.col("power_limit_w").drop_nulls().last(),
        pl.col("temperature_c").mean().alias("_temperature_all"),
        pl.col("temperature_c").max().alias("temperature_max_c"),
        pl.col("memory_temperature_c").max().alias("memory_temperature_max_c"),
        pl.col("_utilization").mean().alias("utilization_ratio"),
        *(_bit(mask).mean().alias(name) for name, mask in _SHARES.items()),
        (pl.col("row_remap_pending").max() > 0).alias("row_remap_pending"),
        (pl.col("row_remap_failed").max() > 0).alias("row_remap_failed"),
        pl.col("pcie_link_width").min().alias("_width_all"),
        pl.col("recovery_action").max(),
        pl.when(~nothing).then(reading).drop_nulls().n_unique().alias("distinct_readings"),
        pl.col("rejected_values").cast(pl.UInt32).sum(),
        pl.col("delivery_delay_s").min(),
    ]


def _busy_gauges() -> list[pl.Expr]:
    """Features over busy samples only."""
    return [
        pl.col("sm_clock_mhz").mean().alias("_clock_mean"),
        pl.col("sm_clock_mhz").min().alias("clock_min_mhz"),
        pl.col("_power").mean().alias("_power_busy"),
        pl.col("temperature_c").mean().alias("_temperature_busy"),
        pl.col("_nvlink").mean().alias("nvlink_bytes_per_s"),
        pl.col("_pcie").mean().alias("pcie_bytes_per_s"),
        pl.col("pcie_link_gen").min(),
        pl.col("pcie_link_width").min().alias("_width_busy"),
        *(pl.col(source).mean().alias(name) for name, source in _BUSY_MEANS.items()),
        *(_bit(mask).mean().alias(name) for name, mask in _BUSY_SHARES.items()),
    ]


def _joined(window_ns: int) -> list[pl.Expr]:
    """What needs both halves, or falls back from one to the other."""
    window_s = window_ns / 1e9
    covered = pl.col("_cycle_samples") * 2 >= pl.col("busy_samples")
    return [
        pl.lit(window_s).alias("window_s"),
        (pl.col("_promised_s") / window_s).clip(0, 1).alias("completeness_ratio"),
        pl.when(covered)
        .then("_cycle_clock")
        .otherwise(None)
        .fill_null(pl.col("_clock_mean"))
        .alias("effective_clock_mhz"),
        pl.coalesce("_power_busy", "_power_all").alias("power_w"),
        pl.coalesce("_temperature_busy", "_temperature_all").alias("temperature_c"),
        pl.coalesce("_width_busy", "_width_all").alias("pcie_link_width"),
        pl.max_horizontal("_fp64", "_fp32", "_fp16").alias("fp_active_ratio"),
    ]


def merge_parts(windows: pl.DataFrame) -> pl.DataFrame:
    """The same rows, with several parts of one (gpu_uuid, window_start_ns) made one by each column's `merge` rule.

    Parts come of two partitions that held one GPU's samples. Means are weighted by busy samples, by samples where
    there are none or where the mean was over all samples. `first` and `last` take the part with the most busy samples
    that has a value. Rows without a twin are left as they are; order is by gpu_uuid and window when anything merges.
    """
    keys = list(WINDOWS.key)
    twins = windows.select(keys).is_duplicated()
    if not twins.any():
        return windows
    parts = windows.filter(twins).sort(*keys, "busy_samples", "samples", "node", "completeness_ratio")
    working = pl.col("busy_samples").sum() > 0
    merged = parts.group_by(keys, maintain_order=True).agg(
        _merge(column.name, column.merge, working).cast(dtype(column.type)).alias(column.name)
        for column in WINDOWS.columns
        if column.merge != "key"
    )
    merged = merged.with_columns(pl.col("completeness_ratio").clip(0, 1)).select(windows.columns)
    return pl.concat([windows.filter(~twins), merged]).sort(keys)


def _merge(name: str, rule: str, working: pl.Expr) -> pl.Expr:
    value = pl.col(name)
    if rule == "mean":
        by_samples = _weighted(value, pl.col("samples"))
        if name in OVER_ALL_SAMPLES:
            return by_samples
        return pl.when(working).then(_weighted(value, pl.col("busy_samples"))).otherwise(by_samples)
    if rule in ("sum", "max", "min"):
        known = value.count() > 0
        total: pl.Expr = getattr(value, rule)()
        return pl.when(known).then(total)
    if rule == "or":
        return value.any()
    return value.drop_nulls().last()


def _weighted(value: pl.Expr, weight: pl.Expr) -> pl.Expr:
    weights = pl.when(value.is_not_null()).then(weight.cast(pl.Float64))
    total = weights.sum()
    return pl.when(total > 0).then((value.cast(pl.Float64) * weights).sum() / total).otherwise(value.mean())
