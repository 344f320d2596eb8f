"""Findings held from events: XIDs, lost GPUs, ECC errors, until a reset, a return or time lifts them.

To add a kind of event: one line in `KINDS`, its reason in `analytics/reasons.py`.
"""

from collections.abc import Mapping
from types import MappingProxyType

import polars as pl

from analytics.thresholds import Thresholds
from analytics.xid import XIDS

HOLDS: dict[str, pl.DataType] = {
    "gpu_uuid": pl.String(),
    "code": pl.String(),
    "value": pl.Int64(),
    "time_ns": pl.Int64(),
}
"""One row per GPU, reason code and value (the XID's number): the newest time it happened."""

KINDS: Mapping[str, str] = MappingProxyType(
    {
        "xid": "xid",
        "gpu_lost": "gpu_lost",
        "missing_gpu": "missing_gpu",
        "fabric_fault": "fabric_fault",
        "collector_hang": "collector_trouble",
        "collector_failed": "collector_trouble",
        "clock_skew": "collector_trouble",
    }
)
"""Kinds of events that become a reason, and which; others only inform."""

RESETS = ("gpu_reset", "driver_reload")
"""Kinds that lift what a reset heals; counters start anew by themselves."""

APPLICATION_XIDS = tuple(code for code, policy in XIDS.items() if policy.tier is None)
REPAIR_XIDS = tuple(code for code, policy in XIDS.items() if policy.action == "repair")
GONE = ("gpu_lost", "missing_gpu", "access_lost")


def of_events(events: pl.DataFrame, node_gpus: pl.DataFrame) -> pl.DataFrame:
    """Events with a `gpu_uuid` each: one of a whole node becomes one for each of its known GPUs (`node_gpus`).

    A GPU missing without a name is a matter of its node: the neighbours are told so, not accused.
    """
    single = events.filter(pl.col("gpu_uuid") != "").with_columns(whole=pl.lit(value=False))
    whole = events.filter(pl.col("gpu_uuid") == "").drop("gpu_uuid").join(node_gpus, on="node")
    columns = ["gpu_uuid", "node", "kind", "code", "time_ns", "whole"]
    return pl.concat([single.select(columns), whole.with_columns(whole=pl.lit(value=True)).select(columns)])


def from_events(events: pl.DataFrame) -> pl.DataFrame:
    """New holds from events of single GPUs (see `of_events`)."""
    held = events.filter(
        pl.col("kind").is_in(list(KINDS)) & ~((pl.col("kind") == "xid") & pl.col("code").is_in(APPLICATION_XIDS))
    )
    code = (
        pl.when((pl.col("kind") == "missing_gpu") & pl.col("whole"))
        .then(pl.lit("node_missing_gpu"))
        .otherwise(pl.col("kind").replace(dict(KINDS)))
    )
    value = pl.when(pl.col("kind") == "xid").then("code").otherwise(0)
    return held.select("gpu_uuid", code.alias("code"), value.cast(pl.Int64).alias("value"), "time_ns")


def from_windows(windows: pl.DataFrame) -> pl.DataFrame:
    """Holds from what counters say happened in a window: uncorrected ECC errors."""
    broken = windows.filter(pl.col("ecc_uncorrected") > 0)
    return broken.select(
        "gpu_uuid",
        pl.lit("ecc_uncorrected").alias("code"),
        pl.col("ecc_uncorrected").cast(pl.Int64).alias("value"),
        pl.col("window_start_ns").alias("time_ns"),
    )


def merge(holds: pl.DataFrame, new: pl.DataFrame) -> pl.DataFrame:
    """The holds with the new ones, each reason once with its newest time: a hundred equal XIDs are one."""
    if new.is_empty():
        return holds
    number = pl.when(pl.col("code") == "xid").then("value").otherwise(0).alias("_number")
    joined = pl.concat([holds, new.select(*HOLDS)]).sort("gpu_uuid", "code", "time_ns", "value")
    return (
        joined.with_columns(number)
        .group_by("gpu_uuid", "code", "_number")
        .last()
        .select(*HOLDS)
        .sort("gpu_uuid", "code", "value")
    )


def node_wide(holds: pl.DataFrame, node_gpus: pl.DataFrame, *, burst_s: float) -> pl.DataFrame:
    """Where all GPUs of a node (two or more) were lost within `burst_s`: `access_lost` instead."""
    lost = holds.filter(pl.col("code") == "gpu_lost").join(node_gpus, on="gpu_uuid")
    if lost.is_empty():
        return holds
    sizes = node_gpus.group_by("node").agg(pl.len().alias("size"))
    span = pl.col("time_ns").max() - pl.col("time_ns").min()
    nodes = lost.group_by("node").agg(pl.len().alias("lost"), span.alias("span")).join(sizes, on="node")
    nodes = nodes.filter((pl.col("lost") == pl.col("size")) & (pl.col("size") > 1) & (pl.col("span") <= burst_s * 1e9))
    at_once = lost.join(nodes, on="node", how="semi").select("gpu_uuid").with_columns(at_once=pl.lit(value=True))
    joined = holds.join(at_once, on="gpu_uuid", how="left", maintain_order="left")
    renamed = pl.when(pl.col("at_once") & (pl.col("code") == "gpu_lost")).then(pl.lit("access_lost")).otherwise("code")
    return joined.with_columns(renamed.alias("code")).select(*HOLDS).sort("gpu_uuid", "code", "value")


def standing(holds: pl.DataFrame, gpus: pl.DataFrame, *, now_ns: int, limits: Thresholds) -> pl.DataFrame:
    """The holds that still stand.

    A reset (`gpus.reset_ns`) lifts what came before it, except what asks for repair. A GPU that was gone is back after
    M windows in a row (`gpus.run`, `window_start_ns`, `window_s`). The rest ends after `hold_s`, collector trouble
    after `trouble_s`; what asks for repair never ends by itself.
    """
    if holds.is_empty():
        return holds
    rows = holds.join(
        gpus.select("gpu_uuid", "reset_ns", "run", "window_start_ns", "window_s"), on="gpu_uuid", maintain_order="left"
    )
    repair = (pl.col("code") == "xid") & pl.col("value").is_in(REPAIR_XIDS)
    reset = (pl.col("time_ns") <= pl.col("reset_ns")) & ~repair
    since = (pl.col("window_start_ns") - pl.col("time_ns")) / 1e9
    back = (pl.col("run") >= limits.of) & (since >= (limits.of - 1) * pl.col("window_s"))
    returned = pl.col("code").is_in(GONE) & back
    lifted = reset | returned
    age_s = (now_ns - pl.col("time_ns")) / 1e9
    term = pl.when(pl.col("code") == "collector_trouble").then(limits.trouble_s).otherwise(limits.hold_s)
    lifted = lifted | ((age_s > term) & ~repair)
    return rows.filter(~lifted.fill_null(value=False)).select(*HOLDS)
