"""Rows of SCORES and TRANSITIONS from verdicts.

To fill a new column of either table: one expression here.
"""

from hashlib import blake2b

import polars as pl

from analytics.frames import schema
from analytics.state import State, encode
from telemetry.tables import SCORES, TRANSITIONS

ID_BYTES = 10  #: of a transition's id: no collision in 10^12 transitions worth speaking of
FIRST_SIGHT = ("degraded", "quarantine")  #: a new GPU in any other tier is no news


def scores_of(public: pl.DataFrame, state: State) -> pl.DataFrame:
    """One row of SCORES per row of `public`: state rows joined with verdict and primary speed."""
    some = public.select("gpu_uuid")
    mine = state.gpus.join(some, on="gpu_uuid", how="semi", maintain_order="left")
    saved = encode(
        mine,
        telemetry=_of(state.telemetry, some),
        results=_of(state.results, some),
        holds=_of(state.holds, some),
    )
    rows = public.join(_speeds_json(_of(state.speeds, some)), on="gpu_uuid", how="left", maintain_order="left")
    rows = rows.sort("gpu_uuid").with_columns(saved)
    return rows.with_columns(
        pl.col("peers").fill_null(0),
        pl.col("evidence").fill_null(0),
        pl.col("low").alias("speed_low"),
        pl.col("high").alias("speed_high"),
        pl.col("speeds").fill_null("{}"),
    ).select(pl.col(name).cast(kind) for name, kind in schema(SCORES).items())


def _of(frame: pl.DataFrame, some: pl.DataFrame) -> pl.DataFrame:
    return frame.join(some, on="gpu_uuid", how="semi", maintain_order="left")


def _speeds_json(speeds: pl.DataFrame) -> pl.DataFrame:
    """gpu_uuid, speeds: a JSON object with one member per class."""
    one = pl.struct(*(pl.col(name).round(6) for name in ("speed", "low", "high")), "samples", "source")
    member = pl.format('"{}":{}', "workload_class", one.struct.json_encode())
    rows = speeds.filter(pl.col("scope") == "gpu").select("gpu_uuid", member.alias("member"))
    grouped = rows.group_by("gpu_uuid", maintain_order=True).agg(pl.col("member").str.join(","))
    return grouped.select("gpu_uuid", (pl.lit("{") + pl.col("member") + pl.lit("}")).alias("speeds"))


def transitions_of(public: pl.DataFrame) -> pl.DataFrame:
    """Rows of TRANSITIONS for tiers that changed; of a GPU seen for the first time only if it is a bad one."""
    first = pl.col("tier_before").is_null()
    moved = public.filter(
        pl.when(first).then(pl.col("tier").is_in(list(FIRST_SIGHT))).otherwise(pl.col("tier") != pl.col("tier_before"))
    ).sort("gpu_uuid")
    keys = moved.select("gpu_uuid", "caused_ns", "tier_before", "tier").iter_rows()
    return moved.with_columns(
        pl.Series("transition_id", [transition_id(*key) for key in keys], dtype=pl.String),
        pl.col("caused_ns").alias("time_ns"),
        pl.col("tier_before").alias("from_tier"),
        pl.col("tier").alias("to_tier"),
    ).select(pl.col(name).cast(kind) for name, kind in schema(TRANSITIONS).items())


def transition_id(gpu_uuid: str, time_ns: int, from_tier: str | None, to_tier: str) -> str:
    """The same for the same change, whoever computes it, however often."""
    text = "\0".join((gpu_uuid, str(time_ns), from_tier or "", to_tier))
    return blake2b(text.encode(), digest_size=ID_BYTES).hexdigest()
