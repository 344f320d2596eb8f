"""Rows of SCORES and TRANSITIONS from verdicts.

To fill a new column of either table: one expression here.
"""

from hashlib import blake2b

import polars as pl

from analytics.frames import schema
from analytics.keys import beside, in_order
from analytics.state import State, encode
from telemetry.tables import SCORES, TRANSITIONS

ID_BYTES = 10  #: of a transition's id: no collision in 10^12 transitions worth speaking of
FIRST_SIGHT = ("degraded", "quarantine")  #: a new GPU in any other tier is no news


def scores_of(public: pl.DataFrame, state: State) -> pl.DataFrame:
    """One row of SCORES per row of `public`: state rows joined with verdict and primary speed."""
    saved = encode(
        _of(state.gpus, public),
        judged=_of(state.judged, public),
        telemetry=_of(state.telemetry, public),
        results=_of(state.results, public),
        holds=_of(state.holds, public),
    )
    speeds = in_order(_speeds_json(_of(state.speeds, public)))
    rows = beside(public, speeds)
    return rows.with_columns(
        pl.col("peers").fill_null(0),
        pl.col("evidence").fill_null(0),
        pl.col("low").alias("speed_low"),
        pl.col("high").alias("speed_high"),
        pl.col("speeds").fill_null("{}"),
        saved,
    ).select(pl.col(name).cast(kind) for name, kind in schema(SCORES).items())


def _of(frame: pl.DataFrame, public: pl.DataFrame) -> pl.DataFrame:
    """The rows of the GPUs that are published."""
    return frame.join(public.select("gpu"), on="gpu", maintain_order="left")


def _speeds_json(speeds: pl.DataFrame) -> pl.DataFrame:
    """gpu, speeds: a JSON object with one member per class."""
    one = pl.struct(*(pl.col(name).round(6) for name in ("speed", "low", "high")), "samples", "source")
    member = pl.format('"{}":{}', "workload_class", one.struct.json_encode())
    rows = speeds.filter(pl.col("scope") == "gpu").select("gpu", member.alias("member"))
    grouped = rows.group_by("gpu", maintain_order=True).agg(pl.col("member").str.join(","))
    return grouped.select("gpu", (pl.lit("{") + pl.col("member") + pl.lit("}")).alias("speeds"))


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
