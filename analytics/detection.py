"""Changes of a GPU's speed against its own past: cumulative sums that restart its evidence, and slow drifts.

To follow something more: its memory in `MEMORY`, its step in `follow`.
"""

from dataclasses import dataclass
from typing import Any

import polars as pl

from analytics.keys import beside

MEMORY: dict[str, tuple[pl.DataType, Any]] = {
    "c_class": (pl.String(), None),  # the class of work that the rest speaks of
    "c_base": (pl.Float64(), None),  # log speed as it was first known
    "c_windows": (pl.UInt32(), 0),  # windows behind it, at most `baseline_windows`
    "c_noise": (pl.Float64(), None),  # half the mean squared step between windows (von Neumann 1941)
    "c_last": (pl.Float64(), None),
    "c_fall": (pl.Float64(), 0.0),
    "c_fall_windows": (pl.UInt32(), 0),
    "c_fall_sum": (pl.Float64(), 0.0),
    "c_rise": (pl.Float64(), 0.0),
    "c_rise_windows": (pl.UInt32(), 0),
    "c_rise_sum": (pl.Float64(), 0.0),
    "c_drift": (pl.Float64(), 0.0),
}
"""Columns of a GPU's state. Sums of log speed; `_windows` and `_sum` count and add since a sum last stood at zero."""

NOISE_FLOOR = 0.003  #: between windows: a 15 MHz clock step at 1.4 GHz, spread evenly
DECIMALS = 12  #: of what is remembered: it is written as text and read back the same
NOISE_MEMORY = 30  #: windows over which the noise is averaged


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """`gpus` with its memory moved on; `telemetry` with evidence begun anew after changes; `findings`: `drifting`."""

    gpus: pl.DataFrame
    telemetry: pl.DataFrame
    findings: pl.DataFrame


def follow(
    gpus: pl.DataFrame,
    telemetry: pl.DataFrame,
    speeds: pl.DataFrame,
    *,
    change_slack: float = 0.005,
    change_limit: float = 5.0,
    change_windows: float = 3,
    drift_effect: float = 0.02,
    drift_limit: float = 0.10,
    baseline_windows: float = 60,
) -> Followed:
    """What one window's log speeds (gpu, workload_class, log_speed) change in what was known of each GPU.

    Page's cumulative sums (Page 1954) of log speed less the evidence's mean, one for falls and one for rises, each
    window forgiven `change_slack` or its usual noise; past `change_limit` times the noise, and with at least
    `change_windows` windows behind it, what came before the change says nothing of the GPU as it is now: its evidence
    is begun anew with the windows since. A third sum is taken against the GPU's first `baseline_windows` windows, which
    are not forgotten: half of `drift_effect` is forgiven, and past `drift_limit` with a mean that is lower by
    `drift_effect` the GPU has drifted (columns `drifting`, `drifting_value`: log speed lost, null where not judged).
    A GPU whose class of work changes begins anew.
    """
    new = speeds.filter(pl.col("log_speed").is_not_null()).select("gpu", "workload_class", "log_speed")
    rows = beside(new, gpus.select("gpu", *MEMORY))
    known = telemetry.select("gpu", pl.col("workload_class").alias("_class"), pl.col("mean").alias("_mean"))
    known = known.join(new.select("gpu", "workload_class"), on="gpu", maintain_order="left")
    known = known.filter(pl.col("_class").eq_missing(pl.col("workload_class"))).select("gpu", "_mean")
    rows = beside(rows, known)
    rows = _steps(rows, slack=change_slack, drift_slack=drift_effect / 2, baseline_windows=baseline_windows)
    noise = pl.max_horizontal(pl.col("c_noise").sqrt(), pl.lit(NOISE_FLOOR))
    changed = [
        (pl.col(f"c_{way}") > change_limit * noise) & (pl.col(f"c_{way}_windows") >= change_windows)
        for way in ("fall", "rise")
    ]
    fell, rose = changed
    rows = rows.with_columns(
        pl.when(fell).then("c_fall_windows").when(rose).then("c_rise_windows").alias("_since"),
        pl.when(fell).then("c_fall_sum").when(rose).then("c_rise_sum").alias("_sum"),
        (noise**2).alias("_variance"),
    )
    restarted = _restart(telemetry, rows.filter(pl.col("_since").is_not_null()))
    again = pl.col("_since").is_not_null()
    zeros = {name: first for name, (_, first) in MEMORY.items() if name.startswith(("c_fall", "c_rise"))}
    rows = rows.with_columns(
        pl.when(~again).then(name).otherwise(pl.lit(first, dtype=MEMORY[name][0])).alias(name)
        for name, first in zeros.items()
    )
    mean = pl.when(again).then(pl.col("_sum") / pl.col("_since")).otherwise("_mean")
    lost = pl.col("c_base") - mean
    settled = pl.col("c_windows") >= baseline_windows
    found = (pl.col("c_drift") > drift_limit) & (lost > drift_effect)
    findings = rows.select(
        "gpu", pl.when(settled).then(found).alias("drifting"), (lost.exp() - 1).alias("drifting_value")
    )
    return Followed(gpus=_merged(gpus, rows), telemetry=restarted, findings=findings)


def _steps(rows: pl.DataFrame, *, slack: float, drift_slack: float, baseline_windows: float) -> pl.DataFrame:
    """The memory of the GPUs in this window with its log speed taken in."""
    other = pl.col("c_class").ne_missing(pl.col("workload_class"))
    rows = rows.with_columns(
        pl.when(~other).then(name).otherwise(pl.lit(first, dtype=kind)).alias(name)
        for name, (kind, first) in MEMORY.items()
    )
    x = pl.col("log_speed")
    step = (x - pl.col("c_last")) ** 2 / 2
    age = pl.min_horizontal(pl.col("c_windows"), pl.lit(NOISE_MEMORY)).clip(lower_bound=1)
    noise = pl.when(pl.col("c_noise").is_null()).then(step).otherwise(
        pl.col("c_noise") + (step - pl.col("c_noise")) / age
    )  # fmt: skip
    forgiven = pl.max_horizontal(pl.lit(slack), pl.col("c_noise").sqrt())
    count = pl.col("c_windows").cast(pl.Float64)
    young = count < baseline_windows
    base = pl.col("c_base").fill_null(0.0)
    off = x - pl.col("_mean").fill_null(x)
    moved: list[pl.Expr] = []
    for way, sign in (("fall", -1.0), ("rise", 1.0)):
        total = (pl.col(f"c_{way}") + sign * off - forgiven).clip(lower_bound=0.0)
        going = total > 0
        moved += [
            total.alias(f"c_{way}"),
            pl.when(going).then(pl.col(f"c_{way}_windows") + 1).otherwise(0).cast(pl.UInt32).alias(f"c_{way}_windows"),
            pl.when(going).then(pl.col(f"c_{way}_sum") + x).otherwise(0.0).alias(f"c_{way}_sum"),
        ]
    drift = (pl.col("c_drift") + (pl.col("c_base") - x) - drift_slack).clip(lower_bound=0.0)
    return rows.with_columns(
        *moved,
        pl.col("workload_class").alias("c_class"),
        pl.when(young).then(base + (x - base) / (count + 1)).otherwise("c_base").alias("c_base"),
        pl.when(young).then(count + 1).otherwise(count).cast(pl.UInt32).alias("c_windows"),
        noise.alias("c_noise"),
        x.alias("c_last"),
        pl.when(young).then(0.0).otherwise(drift.clip(upper_bound=1.0)).alias("c_drift"),
    )


def _restart(telemetry: pl.DataFrame, changed: pl.DataFrame) -> pl.DataFrame:
    """The evidence of changed GPUs as if it had begun with the change."""
    if changed.is_empty():
        return telemetry
    since = changed.select("gpu", pl.col("workload_class").alias("_class"), "_since", "_sum", "_variance")
    rows = beside(telemetry, since)
    here = pl.col("_class").eq_missing(pl.col("workload_class"))
    rows = rows.with_columns(pl.when(here).then("_since").alias("_since"))
    count = pl.col("_since").cast(pl.Float64)
    anew = {
        "weight": count,
        "weight2": count,
        "mean": pl.col("_sum") / count,
        "spread": pl.col("_variance") * (count - 1),
        "windows": pl.col("_since"),
    }
    there = count.is_not_null()
    return rows.with_columns(
        pl.when(there).then(value).otherwise(name).cast(telemetry.schema[name]).alias(name)
        for name, value in anew.items()
    ).select(telemetry.columns)


def _merged(gpus: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """`gpus` with the memory of `rows`."""
    told = rows.select("gpu", *MEMORY, pl.lit(value=True).alias("_told")).with_columns(
        pl.col(name).round(DECIMALS) for name, (kind, _) in MEMORY.items() if kind == pl.Float64()
    )
    if len(told) == len(gpus):
        return gpus.with_columns(told[name] for name in MEMORY)
    joined = gpus.select("gpu", *MEMORY).join(told, on="gpu", how="left", suffix="_new", maintain_order="left")
    kept = joined.select(pl.when("_told").then(f"{name}_new").otherwise(name).alias(name) for name in MEMORY)
    return gpus.with_columns(kept)
