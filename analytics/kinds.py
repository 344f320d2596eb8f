"""Two kinds of board under one name: peer groups that are split because their speeds say so, and joined again.

To let something else tell kinds apart: its values in `_values`, one row per GPU and contest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from analytics import detection, tiers
from analytics.groups import cut
from analytics.keys import KEY, beside
from analytics.peers import load_bin
from analytics.reasons import JUDGED, REASONS

MEMORY: dict[str, tuple[pl.DataType, Any]] = {
    "kind": (pl.UInt32(), 0),  # 1: of the slower kind of its group
    "m_kind": (pl.UInt32(), 0),  # looks that found it in the slower part of a group in two, as bits, newest lowest
}
"""Columns of a GPU's state."""

SUFFIX = "|slower kind"
EVERY = 10  #: windows between two looks, by the clock, so that a restart looks at the same ones
LOOKS = 6  #: in a row: an hour with windows of a minute
MIN_SIZE = 8  #: GPUs of each kind
MIN_SHARE = 0.2  #: of the group: 12 % of Azure's A100 nodes had FP32 at half speed, and were no kind
SAME_WORK = 0.05  #: activities of both parts agree to this, or they do other work
NO_HOTTER_C = 5.0  #: a slower part that is hotter than this is badly cooled
SINCE_EVER = 0.01  #: log speed: of a slower part that was not slower before, something happened
SAMPLE = 20_000  #: GPUs of a group that are looked at for the cut
_SPEED = ("slow", "very_slow", "node_slow", "drifting", "odd_combination")
_EXPLAINED = [
    c for c in JUDGED if c not in _SPEED and REASONS[c].cause in ("cooling", "power", "software", "telemetry")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorted:
    """`gpus` with their kinds moved on; `judged` and `telemetry` without what was judged, and known, of the speed of
    groups that were split or joined."""

    gpus: pl.DataFrame
    judged: pl.DataFrame
    telemetry: pl.DataFrame


def group_of(base: pl.Expr, before: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
    """The name of a GPU's peer group, and whether its kind still holds: a kind is one of the group it was found in."""
    holds = (pl.col("kind") == 1) & (before.str.strip_suffix(SUFFIX) == base).fill_null(value=False)
    return pl.when(holds).then(base + SUFFIX).otherwise(base).alias("peer_group"), holds


def sort_kinds(
    gpus: pl.DataFrame, judged: pl.DataFrame, telemetry: pl.DataFrame, windows: pl.DataFrame, *, window_start_ns: int,
    window_s: float,
) -> Sorted:  # fmt: skip
    """What a window tells about kinds, in every `EVERY`th one.

    `gpus`: rows of the state. `windows`: rows of WINDOWS of one window with peer_group, slot and `eligible`. A group is
    in two parts where its clocks at equal class and load are clearly bimodal (`groups.cut`, slot effects taken out),
    both parts are at least `MIN_SIZE` and `MIN_SHARE` of it, do the same work by their activities (without any
    activity nothing is said), and no fault explains the slower one: it is not hotter, was not faster before, and GPUs
    with a finding of another cause have no say. A GPU changes its kind after `LOOKS` looks in a row, and only if
    enough do. Then the group's evidence and judgements of speed begin anew, since everybody has other peers.
    """
    if window_start_ns // round(window_s * 1e9) % EVERY:
        return Sorted(gpus=gpus, judged=judged, telemetry=telemetry)
    looked = _looks(_values(gpus, judged, windows))
    if looked.is_empty():
        return Sorted(gpus=gpus, judged=judged, telemetry=telemetry)
    rows = beside(gpus, looked.sort("gpu"))
    mask = ((pl.col("m_kind").cast(pl.UInt64) * 2 + pl.col("slower").cast(pl.UInt64)) % 2**LOOKS).cast(pl.UInt32)
    rows = rows.with_columns(pl.coalesce(mask, "m_kind").alias("m_kind"), _base().alias("base"))
    wanted = (
        pl.when(pl.col("m_kind") == 2**LOOKS - 1).then(1).when(pl.col("m_kind") == 0).then(0).otherwise("kind")
    ).cast(pl.UInt32)
    rows = rows.with_columns(wanted.alias("wanted"))
    some = pl.col("wanted").sum().over("base")
    fewest = pl.max_horizontal(pl.lit(MIN_SIZE), (pl.len().over("base") * MIN_SHARE).ceil())
    real = (some == 0) | ((some >= fewest) & (pl.len().over("base") - some >= fewest))
    rows = rows.with_columns(pl.when(real).then("wanted").otherwise("kind").alias("wanted"))
    changed = rows.filter(pl.col("wanted") != pl.col("kind"))["base"].unique()
    rows = rows.with_columns(pl.col("wanted").alias("kind"))
    if len(changed):
        anew = pl.col("base").is_in(changed.implode())
        rows = rows.with_columns(
            pl.when(anew).then(pl.lit(first, dtype=kind)).otherwise(name).alias(name)
            for name, (kind, first) in _FORGOTTEN.items()
        )
        members = rows.filter(anew).select("gpu")
        telemetry = telemetry.join(members, on="gpu", how="anti", maintain_order="left")
        mine = pl.col("gpu").is_in(members["gpu"].implode())
        judged = tiers.remembered(
            judged.with_columns(
                pl.when(mine).then(pl.lit(first, dtype=kind)).otherwise(name).alias(name)
                for name, (kind, first) in _UNJUDGED.items()
            )
        )
    return Sorted(gpus=rows.select(gpus.columns), judged=judged, telemetry=telemetry)


def _base() -> pl.Expr:
    return pl.col("peer_group").str.strip_suffix(SUFFIX)


_UNJUDGED = {name: told for name, told in tiers.MEMORY.items() if name[2:] in _SPEED and name[2:] != "odd_combination"}
"""Judgements of speed, as they were before the first one."""

_FORGOTTEN: dict[str, tuple[pl.DataType, Any]] = {
    "fast": (pl.Boolean(), False), "m_fast_in": (pl.UInt32(), 0), "m_fast_out": (pl.UInt32(), 0), **detection.MEMORY,
}  # fmt: skip


def _values(gpus: pl.DataFrame, judged: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """gpu, base, `value` (log clock against its cell), what it worked, how warm it is, what it was before."""
    memory = pl.col("workload_class") == "memory"
    clock = pl.when(memory).then("memory_clock_mhz").otherwise("effective_clock_mhz").cast(pl.Float64)
    told = pl.col("workload_class").is_in(["compute", "mixed", "memory"])
    rows = windows.filter(pl.col("eligible") & told & (clock > 0)).select(
        "gpu", "slot", "workload_class", load_bin(), _base().alias("base"), clock.log().alias("clock"),
        *(pl.col(name).cast(pl.Float64) for name in ("sm_active_ratio", "dram_active_ratio", "temperature_c")),
        pl.max_horizontal("tensor_active_ratio", "fp_active_ratio").cast(pl.Float64).alias("pipes"),
    )  # fmt: skip
    explained = judged.filter(pl.any_horizontal(f"a_{code}" for code in _EXPLAINED)).select("gpu")
    rows = rows.join(explained, on="gpu", how="anti", maintain_order="left")
    rows = beside(rows, gpus.select("gpu", "c_base", "c_last"))
    # The class and load that most of a group has: one contest a look, others in other hours.
    most = rows.group_by("base", "workload_class", "load_bin").len()
    most = most.sort("base", "len", "workload_class", "load_bin", descending=[False, True, False, False])
    most = most.unique("base", keep="first").drop("len")
    rows = rows.join(most, on=["base", "workload_class", "load_bin"], how="semi", maintain_order="left")
    middle, seat = pl.col("clock").median().over("base"), ["base", "slot"]
    enough = pl.col("slot").is_not_null() & (pl.col("clock").count().over(seat) >= MIN_SIZE)
    effect = pl.when(enough).then(pl.col("clock").median().over(seat) - middle).otherwise(0.0)
    return rows.with_columns((pl.col("clock") - middle - effect).alias("value"))


def _looks(values: pl.DataFrame) -> pl.DataFrame:
    """gpu, `slower`: in which part of its group each GPU is; false where the group is one."""
    parts: list[pl.DataFrame] = []
    for group in values.partition_by("base", maintain_order=True):
        if len(group) < 2 * MIN_SIZE:
            continue
        x = group["value"].to_numpy()
        where, _ = cut(
            np.sort(x[:: max(1, len(x) // SAMPLE)]),
            min_size=MIN_SIZE,
            min_share=MIN_SHARE,
            min_distance=0.02,
            least=5.0,
        )
        slower = pl.lit(value=False) if where is None else pl.col("value") < where
        group = group.with_columns(slower.alias("slower"))
        if where is not None and not _is_kind(group):
            group = group.with_columns(slower=pl.lit(value=False))
        parts.append(group.select("gpu", "slower"))
    return pl.concat(parts) if parts else pl.DataFrame(schema={"gpu": KEY, "slower": pl.Boolean})


def _is_kind(group: pl.DataFrame) -> bool:
    """Whether nothing but the boards themselves explains that some are slower."""
    names = ["sm_active_ratio", "dram_active_ratio", "pipes", "temperature_c"]
    slow, fast = (_medians(group.filter(pl.col("slower") == part), names) for part in (True, False))
    activities = [(slow[name], fast[name]) for name in names[:3] if slow[name] is not None and fast[name] is not None]
    same = bool(activities) and all(abs(a - b) <= SAME_WORK * max(a, b) for a, b in activities)
    hotter = (slow["temperature_c"] or 0.0) - (fast["temperature_c"] or 0.0)
    fell = group.filter("slower").select((pl.col("c_base") - pl.col("c_last")).median()).item()
    return same and hotter <= NO_HOTTER_C and (fell is None or fell <= SINCE_EVER)


def _medians(rows: pl.DataFrame, names: Sequence[str]) -> dict[str, Any]:
    return rows.select(pl.col(name).median() for name in names).row(0, named=True)
