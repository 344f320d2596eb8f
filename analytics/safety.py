"""What stands between evidence and a tier: an operator's word, observing only, and the breaker.

To hold something else back: one step in `decide`, its reason in `analytics/reasons.py`.
"""

from dataclasses import dataclass

import orjson
import polars as pl

from analytics.keys import beside
from analytics.reasons import REASONS, TIER_RANK
from analytics.thresholds import Thresholds
from telemetry.tables import TIERS

MEMORY: dict[str, tuple[pl.DataType, int]] = {
    "demoted_ns": (pl.Int64(), 0),  # when soft evidence last demoted it
    "breaker_ns": (pl.Int64(), 0),  # since when the breaker holds its demotion; LET_THROUGH: an operator has reset
}
"""Columns of a GPU's state. The breaker is open while it holds any GPU's demotion."""

LET_THROUGH = -1
RANK = {"premium": 0} | dict(TIER_RANK)
BAD = TIER_RANK["degraded"]
DEMOTED = [tier for tier, rank in TIER_RANK.items() if rank >= BAD]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """`rows`: with `tier_now`, `reasons`, `codes_now` and the memory as decided; `open`: the breaker holds."""

    rows: pl.DataFrame
    open: bool


def reset(gpus: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """`gpus` after an event `breaker_reset`, if there is one: what was held is let through, counting starts anew."""
    if events.filter(pl.col("kind") == "breaker_reset").is_empty():
        return gpus
    held = pl.col("breaker_ns") > 0
    return gpus.with_columns(
        pl.when(held).then(LET_THROUGH).otherwise(0).cast(pl.Int64).alias("breaker_ns"),
        pl.lit(0, dtype=pl.Int64).alias("demoted_ns"),
    )


def is_open(gpus: pl.DataFrame) -> bool:
    """Whether the breaker holds any of these GPUs' demotions."""
    return bool((gpus["breaker_ns"] > 0).any())


def tiers_at(holds: pl.DataFrame, gpus: pl.DataFrame) -> pl.DataFrame:
    """`holds` with the tier that each new `operator_hold` found, as its place in TIERS plus one."""
    waiting = (pl.col("code") == "operator_hold") & (pl.col("value") == 0)
    if holds.filter(waiting).is_empty():
        return holds
    place = pl.col("tier").fill_null("standard").replace_strict(_PLACE, return_dtype=pl.Int64) + 1
    now = gpus.select("gpu", place.alias("place"))
    rows = beside(holds, now)
    return rows.with_columns(pl.when(waiting).then("place").otherwise("value").alias("value")).select(holds.columns)


def decide(
    wanted: pl.DataFrame, gpus: pl.DataFrame, *, holds: pl.DataFrame, clock_ns: int, limits: Thresholds
) -> Decided:
    """What becomes of the tiers that the evidence asks for.

    `wanted`: one row per GPU that is judged in this step, with `tier` (before, null for a newcomer), `tier_now`,
    `firm` (the tier by events and states alone), `reasons`, `codes_now`, and the memory. `gpus`: all GPUs with theirs.

    * An operator's pin to degraded or worse is the best that a GPU can have; a pin to a better tier, and a hold, stand
      against soft evidence, never against events, states and silence.
    * Observing only: tiers stay, but for silence and the return from it; what they would be becomes a reason.
    * The breaker: at most `breaker_ratio` of the fleet, and at least one GPU, may be demoted by soft evidence (judged
      reasons) within `breaker_s`. A step that would demote more demotes nobody softly, nor does any step after it
      until an operator resets; a newcomer is not demoted, it arrives.
    """
    rows = _pinned(wanted, holds)
    rows = rows.with_columns(pl.col("tier_now").alias("would_be"))
    if limits.observe_only:
        stays = pl.col("tier").fill_null("standard").replace({"unknown": "standard"})
        seen = pl.when(pl.col("firm") == "unknown").then(pl.lit("unknown")).otherwise(stays)
        rows = _noted(rows.with_columns(seen.alias("tier_now")), "observing", limits)
        return Decided(rows=rows.drop("would_be"), open=is_open(gpus))
    # Only who is to be demoted, or is held, is a matter for the breaker: few of a fleet.
    concerned = pl.col("tier_now").is_in(DEMOTED) | (pl.col("breaker_ns") != 0)
    some = rows.filter(concerned)
    if some.is_empty():
        return Decided(rows=rows.drop("would_be"), open=is_open(gpus))
    before, now, firm = (_rank(name) for name in ("tier", "tier_now", "firm"))
    soft = pl.col("tier").is_not_null() & (now >= BAD) & (now > before) & (firm < now) & (now != RANK["unknown"])
    some = some.with_columns((soft & (pl.col("breaker_ns") != LET_THROUGH)).fill_null(value=False).alias("counts"))
    since = clock_ns - round(limits.breaker_s * 1e9)
    recent = int((gpus["demoted_ns"] > max(since, 0)).sum())
    fleet = int(gpus["tier"].is_not_null().sum())
    room = max(1, int(limits.breaker_ratio * fleet)) - recent
    asked = int(some["counts"].sum())
    opened = asked > 0 and (is_open(gpus) or asked > room)
    held = pl.col("counts") & pl.lit(opened)
    stays = pl.when(firm > before).then("firm").otherwise("tier").replace({"unknown": "standard"})
    demoted = (soft & ~held).fill_null(value=False)
    some = some.with_columns(
        pl.when(held).then(stays).otherwise("tier_now").alias("tier_now"),
        pl.when(held & (pl.col("breaker_ns") == 0)).then(clock_ns)
        .when(demoted & (pl.col("breaker_ns") == LET_THROUGH)).then(0)
        .otherwise("breaker_ns").alias("breaker_ns"),
        pl.when(demoted).then(clock_ns).otherwise("demoted_ns").alias("demoted_ns"),
    )  # fmt: skip
    new = some.filter(held | demoted)
    if not new.is_empty():
        rows = _with(rows, _noted(new, "breaker_open", limits))
    return Decided(rows=rows.drop("would_be"), open=opened or is_open(gpus))


_DECIDED = ("tier_now", "reasons", "codes_now", *MEMORY)


def _with(rows: pl.DataFrame, some: pl.DataFrame) -> pl.DataFrame:
    """`rows` with what was decided of `some`."""
    new = some.select("gpu", *(pl.col(name).alias(f"_{name}") for name in _DECIDED), pl.lit(value=True).alias("_some"))
    joined = beside(rows.select("gpu"), new)
    return rows.with_columns(
        pl.when(pl.lit(joined["_some"])).then(pl.lit(joined[f"_{name}"])).otherwise(name).alias(name)
        for name in _DECIDED
    )


_PLACE = {tier: place for place, tier in enumerate(TIERS)}


def _rank(name: str) -> pl.Expr:
    return pl.col(name).replace_strict(RANK, default=None, return_dtype=pl.Int8).fill_null(RANK["standard"])


def _pinned(rows: pl.DataFrame, holds: pl.DataFrame) -> pl.DataFrame:
    """The tiers under what operators said; the newest word of each GPU counts."""
    said = holds.filter(pl.col("code").is_in(["operator_pin", "operator_hold"]))
    if said.is_empty():
        return rows
    names = dict(enumerate(TIERS))
    place = pl.col("value") - (pl.col("code") == "operator_hold").cast(pl.Int64)
    newest = said.sort("gpu", "time_ns", "code").unique("gpu", keep="last", maintain_order=True)
    pins = newest.select("gpu", place.replace_strict(names, return_dtype=pl.String).alias("pin"))
    rows = beside(rows, pins)
    pin, now, firm = (_rank(name) for name in ("pin", "tier_now", "firm"))
    better = pl.when(firm >= BAD).then("firm").otherwise("pin")
    worse = pl.when(now > pin).then("tier_now").otherwise("pin")
    tier = pl.when(pl.col("pin").is_null()).then("tier_now").when(pin < BAD).then(better).otherwise(worse)
    known = pl.when(pl.col("pin").is_null()).then("firm").otherwise(tier)
    return rows.with_columns(tier.alias("tier_now"), known.alias("firm")).drop("pin")


def _noted(rows: pl.DataFrame, code: str, limits: Thresholds) -> pl.DataFrame:
    """`reasons` and `codes_now` with one reason more where the tier is not what it would be."""
    reason = REASONS[code]
    limit = getattr(limits, reason.limit) if reason.limit else None
    other = pl.col("tier_now") != pl.col("would_be")
    head = orjson.dumps({"code": code, "value": None, "limit": limit})[:-1].decode() + ',"text":"'
    words = pl.lit(f"{limit:g}") if limit is not None else pl.col("would_be")
    text = pl.lit(head) + pl.format(reason.text, words) + pl.lit('"}')
    some = pl.col("reasons") != "[]"
    joined = pl.when(some).then(pl.col("reasons").str.head(-1) + ",").otherwise(pl.lit("[")) + text + "]"
    codes = pl.when(pl.col("codes_now") != "").then(pl.col("codes_now") + ",").otherwise(pl.lit("")) + code
    return rows.with_columns(
        pl.when(other).then(joined).otherwise("reasons").alias("reasons"),
        pl.when(other).then(codes).otherwise("codes_now").alias("codes_now"),
    )
