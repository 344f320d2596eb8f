"""Findings held from events: XIDs, lost GPUs, ECC errors, until a reset, a return or time lifts them.

To add a kind of event: one line in `KINDS`, its reason in `analytics/reasons.py`.
"""

from collections.abc import Mapping
from types import MappingProxyType

import polars as pl

from analytics.keys import KEY, beside
from analytics.policy import Policy
from analytics.thresholds import Thresholds
from telemetry.tables import TIERS

HOLDS: dict[str, pl.DataType] = {
    "gpu": KEY,
    "code": pl.String(),
    "value": pl.Int64(),
    "time_ns": pl.Int64(),
}
"""One row per GPU, reason code and value (the XID's number): the newest time it happened.

`xid_seen` is no reason yet: one row a time, of a code that counts only when it comes more often.
"""

SEEN = "xid_seen"
OPERATOR = ("operator_pin", "operator_hold")

KINDS: Mapping[str, str] = MappingProxyType(
    {
        "xid": "xid",
        "gpu_lost": "gpu_lost",
        "missing_gpu": "missing_gpu",
        "fabric_fault": "fabric_fault",
        "collector_hang": "collector_trouble",
        "collector_failed": "collector_trouble",
        "clock_skew": "collector_trouble",
        "operator_pin": "operator_pin",
        "operator_hold": "operator_hold",
        "operator_clear": "operator_clear",
    }
)
"""Kinds of events that become a reason, and which; others only inform."""

RESETS = ("gpu_reset", "driver_reload")
"""Kinds that lift what a reset heals; counters start anew by themselves."""

GONE = ("gpu_lost", "missing_gpu", "access_lost")


def of_events(events: pl.DataFrame, node_gpus: pl.DataFrame) -> pl.DataFrame:
    """Events with a `gpu_uuid` each: one of a whole node becomes one for each of its known GPUs (`node_gpus`).

    A GPU missing without a name is a matter of its node: the neighbours are told so, not accused.
    """
    single = events.filter(pl.col("gpu_uuid") != "").with_columns(whole=pl.lit(value=False))
    whole = events.filter(pl.col("gpu_uuid") == "").drop("gpu_uuid").join(node_gpus, on="node")
    columns = ["gpu_uuid", "node", "kind", "code", "time_ns", "whole"]
    return pl.concat([single.select(columns), whole.with_columns(whole=pl.lit(value=True)).select(columns)])


def from_events(events: pl.DataFrame, policy: Policy) -> pl.DataFrame:
    """New holds, with `gpu_uuid` for `gpu`, from events of single GPUs (see `of_events`).

    `policy` says which XIDs say nothing. `operator_pin` has in `value` the tier, as its place in
    `telemetry.tables.TIERS`; one that is no tier is ignored.
    """
    xid, pin = pl.col("kind") == "xid", pl.col("kind") == "operator_pin"
    rules = {number: policy.of(number) for number in events.filter(xid)["code"].unique().to_list()}
    silent = [number for number, rule in rules.items() if rule.tier is None]
    often = [number for number, rule in rules.items() if rule.count > 1]
    held = events.filter(
        pl.col("kind").is_in(list(KINDS))
        & ~(xid & pl.col("code").is_in(silent))
        & ~(pin & ~pl.col("code").is_between(0, len(TIERS) - 1))
    )
    code = (
        pl.when((pl.col("kind") == "missing_gpu") & pl.col("whole"))
        .then(pl.lit("node_missing_gpu"))
        .when(xid & pl.col("code").is_in(often))
        .then(pl.lit(SEEN))
        .otherwise(pl.col("kind").replace(dict(KINDS)))
    )
    value = pl.when(xid | pin).then("code").otherwise(0)
    return held.select("gpu_uuid", code.alias("code"), value.cast(pl.Int64).alias("value"), "time_ns")


def from_windows(windows: pl.DataFrame) -> pl.DataFrame:
    """Holds from what counters say happened in a window: uncorrected ECC errors."""
    broken = windows.filter(pl.col("ecc_uncorrected") > 0)
    return broken.select(
        "gpu",
        pl.lit("ecc_uncorrected").alias("code"),
        pl.col("ecc_uncorrected").cast(pl.Int64).alias("value"),
        pl.col("window_start_ns").alias("time_ns"),
    )


def merge(holds: pl.DataFrame, new: pl.DataFrame) -> pl.DataFrame:
    """The holds with the new ones, each reason once with its newest time: a hundred equal XIDs are one."""
    if new.is_empty():
        return holds
    number = pl.when(pl.col("code").is_in(["xid", SEEN])).then("value").otherwise(0).alias("_number")
    each = pl.when(pl.col("code") == SEEN).then("time_ns").otherwise(0).alias("_each")
    joined = pl.concat([holds, new.select(*HOLDS)]).sort("gpu", "code", "time_ns", "value")
    return (
        joined.with_columns(number, each)
        .group_by("gpu", "code", "_number", "_each")
        .last()
        .select(*HOLDS)
        .sort("gpu", "code", "value", "time_ns")
    )


def counted(holds: pl.DataFrame, policy: Policy) -> pl.DataFrame:
    """The holds with `xid` for each code that was seen as often, within as long, as its policy asks."""
    seen = holds.filter(pl.col("code") == SEEN)
    if seen.is_empty():
        return holds
    kept, due = [holds.filter(pl.col("code") != SEEN)], []
    for (_, number), times in seen.group_by("gpu", "value", maintain_order=True):
        rule = policy.of(int(number))
        recent = times.filter(pl.col("time_ns") > pl.col("time_ns").max() - round(rule.window_s * 1e9)).sort("time_ns")
        kept.append(recent.tail(rule.count))
        if len(recent) >= rule.count and rule.tier is not None:
            due.append(recent.tail(1).with_columns(pl.lit("xid").alias("code")))
    return merge(pl.concat(kept), pl.concat(due)) if due else pl.concat(kept).sort(*HOLDS)


def cleared(holds: pl.DataFrame) -> pl.DataFrame:
    """The holds without those that came before an operator cleared their GPU."""
    clear = holds.filter(pl.col("code") == "operator_clear").select("gpu", pl.col("time_ns").alias("clear_ns"))
    if clear.is_empty():
        return holds
    rows = beside(holds, clear)
    before = (pl.col("time_ns") <= pl.col("clear_ns")) & (pl.col("code") != "operator_clear")
    return rows.filter(~before.fill_null(value=False)).select(*HOLDS)


def any_lost(holds: pl.DataFrame) -> bool:
    """Whether any GPU is held as lost."""
    return bool((holds["code"] == "gpu_lost").any())


def node_wide(holds: pl.DataFrame, node_gpus: pl.DataFrame, *, burst_s: float) -> pl.DataFrame:
    """Where all GPUs of a node (two or more) were lost within `burst_s`: `access_lost` instead.

    `node_gpus`: node, gpu; needed only where `any_lost`.
    """
    lost = holds.filter(pl.col("code") == "gpu_lost").join(node_gpus, on="gpu")
    if lost.is_empty():
        return holds
    sizes = node_gpus.group_by("node").agg(pl.len().alias("size"))
    span = pl.col("time_ns").max() - pl.col("time_ns").min()
    nodes = lost.group_by("node").agg(pl.len().alias("lost"), span.alias("span")).join(sizes, on="node")
    nodes = nodes.filter((pl.col("lost") == pl.col("size")) & (pl.col("size") > 1) & (pl.col("span") <= burst_s * 1e9))
    at_once = lost.join(nodes, on="node", how="semi").select("gpu").with_columns(at_once=pl.lit(value=True))
    joined = beside(holds, at_once)
    renamed = pl.when(pl.col("at_once") & (pl.col("code") == "gpu_lost")).then(pl.lit("access_lost")).otherwise("code")
    return joined.with_columns(renamed.alias("code")).select(*HOLDS).sort("gpu", "code", "value")


def standing(
    holds: pl.DataFrame, gpus: pl.DataFrame, *, now_ns: int, limits: Thresholds, policy: Policy
) -> pl.DataFrame:
    """The holds that still stand.

    A reset (`gpus.reset_ns`) lifts what came before it, except what asks for repair. A GPU that was gone is back after
    M windows in a row (`gpus.run`, `window_start_ns`, `window_s`), and not before: silence heals nothing. What an
    operator pinned or held stands until it is cleared, what asks for repair too. The rest ends after `hold_s`,
    collector trouble and the word of a clearing after `trouble_s`.
    """
    if holds.is_empty():
        return holds
    rows = holds.join(
        gpus.select("gpu", "reset_ns", "run", "window_start_ns", "window_s"), on="gpu", maintain_order="left"
    )
    asking = [code for code, rule in policy.codes.items() if rule.action == "repair"]
    repair = (pl.col("code") == "xid") & pl.col("value").is_in(asking)
    said = pl.col("code").is_in(list(OPERATOR))
    cleared = pl.col("code") == "operator_clear"
    reset = (pl.col("time_ns") <= pl.col("reset_ns")) & ~repair & ~said & ~cleared
    since = (pl.col("window_start_ns") - pl.col("time_ns")) / 1e9
    back = (pl.col("run") >= limits.of) & (since >= (limits.of - 1) * pl.col("window_s"))
    gone = pl.col("code").is_in(GONE)
    lifted = reset | (gone & back)
    age_s = (now_ns - pl.col("time_ns")) / 1e9
    short = (pl.col("code") == "collector_trouble") | cleared
    term = pl.when(short).then(limits.trouble_s).otherwise(limits.hold_s)
    lifted = lifted | ((age_s > term) & ~repair & ~said & ~gone)
    return rows.filter(~lifted.fill_null(value=False)).select(*HOLDS)
