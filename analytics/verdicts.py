"""Verdicts in words: the reasons that hold for each GPU, and the tier, cause and action that follow.

To add a note (a reason true of this very moment): one block in `_notes`, its line in `analytics/reasons.py`.
"""

import polars as pl

from analytics.cause import shared
from analytics.keys import KEY, beside, in_order
from analytics.policy import Policy
from analytics.reasons import JUDGED, REASONS, TIER_RANK, WORDED, Reason
from analytics.thresholds import Thresholds
from telemetry.tables import ACTIONS

_TYPES = {
    "gpu": KEY, "code": pl.String(), "value": pl.Float64(), "limit": pl.Float64(),
    "text": pl.String(), "tier": pl.String(), "action": pl.String(), "cause": pl.String(),
}  # fmt: skip
_ORDER = {code: position for position, code in enumerate(REASONS)}
_TIER_OF_RANK = {rank: tier for tier, rank in TIER_RANK.items()} | {0: "standard"}  # premium is earned


def reasons(
    gpus: pl.DataFrame, *, judged: pl.DataFrame, holds: pl.DataFrame, speeds: pl.DataFrame, missing: pl.DataFrame,
    limits: Thresholds, policy: Policy, topology: pl.DataFrame | None = None, everyone: pl.DataFrame | None = None,
    drivers: pl.DataFrame | None = None,
) -> pl.DataFrame:  # fmt: skip
    """One row per GPU and reason that holds: code, value, limit, text, tier, action, cause; worst first.

    `judged`: the memory of judgements (`analytics/tiers.py`). `missing`: the nodes that show fewer GPUs than expected.
    `speeds`: rows of `state.speeds`. `everyone`: all GPUs, where `gpus` are only some, for the level at which an excess
    sits. `drivers`: rows of `groups.odd_drivers`.
    """
    some = judged.join(gpus.select("gpu"), on="gpu", maintain_order="left")
    parts = [
        _of(
            some.filter(f"a_{code}"),
            REASONS[code],
            pl.col(f"v_{code}"),
            limits,
            words=pl.col(f"t_{code}") if code in WORDED else None,
        )
        for code in JUDGED
    ]
    parts += [_held(holds.join(gpus.select("gpu"), on="gpu", maintain_order="left"), policy)]
    levels = shared(gpus if everyone is None else everyone, judged, topology)
    parts += [_shared(levels, gpus), _overheating(levels, gpus, limits)]
    if drivers is not None and not drivers.is_empty():
        odd = drivers.join(gpus.filter(~pl.col("stale")).select("gpu"), on="gpu", maintain_order="left")
        parts += [_of(odd, REASONS["driver_version"], pl.lit(None), limits, words=pl.col("words"))]
    parts += _notes(gpus, speeds=speeds, missing=missing, holds=holds, limits=limits)
    rank = pl.col("tier").replace_strict(TIER_RANK, return_dtype=pl.UInt8)
    order = pl.col("code").replace_strict(_ORDER, return_dtype=pl.UInt16)
    rows = pl.concat([part for part in parts if not part.is_empty()] or [pl.DataFrame(schema=_TYPES)])
    return rows.with_columns(rank.alias("rank"), order.alias("order")).sort(
        "gpu", "rank", "order", "value", descending=[False, True, False, False]
    )


def _of(
    gpus: pl.DataFrame, reason: Reason, value: pl.Expr, limits: Thresholds, *, words: pl.Expr | None = None
) -> pl.DataFrame:
    if gpus.is_empty():
        return pl.DataFrame(schema=_TYPES)
    limit = getattr(limits, reason.limit) if reason.limit else None
    shown = pl.lit(None if limit is None else f"{limit:g}", dtype=pl.String)
    places = [_short(value), shown][2 - reason.text.count("{}") :] if reason.limit else [_short(value)]
    text = pl.format(reason.text, *places) if "{}" in reason.text else pl.lit(reason.text)
    if words is not None:
        text = pl.format("{}: {}", text, words)
    return gpus.select(
        "gpu",
        pl.lit(reason.code).alias("code"),
        value.cast(pl.Float64).round(6).alias("value"),
        pl.lit(limit, dtype=pl.Float64).alias("limit"),
        text.fill_null(reason.text.replace("{}", "?")).alias("text"),
        pl.lit(reason.tier).alias("tier"),
        pl.lit(reason.action).alias("action"),
        pl.lit(reason.cause, dtype=pl.String).alias("cause"),
    )


def _short(value: pl.Expr) -> pl.Expr:
    """The number as people read it: no decimals when it is whole."""
    whole = value.round(3) == value.round(0)
    return (
        pl.when(whole)
        .then(value.round(0).cast(pl.Int64, strict=False).cast(pl.String))
        .otherwise(value.round(3).cast(pl.String))
    )


def _held(holds: pl.DataFrame, policy: Policy) -> pl.DataFrame:
    """Reasons from events; an XID brings tier, action and cause of its own."""
    if holds.is_empty():
        return pl.DataFrame(schema=_TYPES)
    plain = [
        _of(holds.filter(pl.col("code") == code), reason, pl.col("value").cast(pl.Float64), Thresholds())
        for code, reason in REASONS.items()
        if code != "xid" and code in set(holds["code"].unique())
    ]
    xids = holds.filter(pl.col("code") == "xid")
    if xids.is_empty():
        return pl.concat([pl.DataFrame(schema=_TYPES), *plain])
    number = pl.col("value")
    rules = {code: policy.of(code) for code in xids["value"].unique().to_list()}
    silent = [code for code, rule in rules.items() if rule.tier is None]
    xids = xids.filter(~number.is_in(silent))

    def told(field: str) -> pl.Expr:
        answers = {code: getattr(rule, field) for code, rule in rules.items()}
        return number.replace_strict(answers, return_dtype=pl.String).alias(field)

    rows = xids.select(
        "gpu",
        "code",
        number.cast(pl.Float64).alias("value"),
        pl.lit(None, dtype=pl.Float64).alias("limit"),
        pl.format("XID {}: {}", number, told("text")).alias("text"),
        told("tier"),
        told("action"),
        told("cause"),
    )
    return pl.concat([pl.DataFrame(schema=_TYPES), *plain, rows])


def _shared(levels: pl.DataFrame, gpus: pl.DataFrame) -> pl.DataFrame:
    """The level at which an excess sits, for GPUs whose node or block shares it."""
    reason = REASONS["shared"]
    rows = levels.join(gpus.select("gpu"), on="gpu", maintain_order="left")
    share = pl.col("share").round(2).cast(pl.String)
    return rows.select(
        "gpu",
        pl.lit(reason.code).alias("code"),
        pl.col("share").round(6).alias("value"),
        pl.lit(None, dtype=pl.Float64).alias("limit"),
        pl.format("{} at the level {}: {} of {} has it", "kind", "level", share, pl.col("value")).alias("text"),
        pl.lit(reason.tier).alias("tier"),
        pl.lit(reason.action).alias("action"),
        pl.lit(reason.cause, dtype=pl.String).alias("cause"),
    )


def _overheating(levels: pl.DataFrame, gpus: pl.DataFrame, limits: Thresholds) -> pl.DataFrame:
    """A block that is hot as a whole, and some of whose GPUs heat slows: the others would be slowed by heavier work."""
    some = levels.filter((pl.col("kind") == "heat") & (pl.col("gravest") >= limits.overheated_ratio))
    rows = some.select("gpu", "gravest").join(gpus.select("gpu"), on="gpu", maintain_order="left")
    return _of(rows, REASONS["overheating"], pl.col("gravest"), limits)


def _notes(
    gpus: pl.DataFrame, *, speeds: pl.DataFrame, missing: pl.DataFrame, holds: pl.DataFrame, limits: Thresholds
) -> list[pl.DataFrame]:
    nothing = pl.lit(None, dtype=pl.Float64)
    stale, few = gpus.filter("stale"), gpus.filter(~pl.col("stale") & pl.col("few_peers"))
    scored = speeds.select("gpu", pl.lit(value=True).alias("_scored")).filter(pl.col("gpu").is_first_distinct())
    rows = beside(gpus.select("gpu", "stale", "few_peers"), scored)
    unloaded = rows.filter(~pl.col("stale") & ~pl.col("few_peers") & pl.col("_scored").is_null())
    incomplete = gpus.clear()
    if not missing.is_empty():
        told = holds.filter(pl.col("code") == "node_missing_gpu").select("gpu")
        short = gpus.filter(pl.col("node").is_in(missing["node"].implode()))
        incomplete = short.join(told, on="gpu", how="anti", maintain_order="left")
    return [
        _of(stale, REASONS["stale"], nothing, limits),
        _of(few, REASONS["few_peers"], nothing, limits),
        _of(unloaded, REASONS["no_load"], nothing, limits),
        _of(incomplete, REASONS["node_missing_gpu"], nothing, limits),
    ]


def verdicts(gpus: pl.DataFrame, told: pl.DataFrame, *, evidence: pl.DataFrame, limits: Thresholds) -> pl.DataFrame:
    """One row per row of `gpus`: tier, firm, cause, action, reasons (JSON text), codes (what counts as a change).

    `firm`: the tier by events, states and silence, without what is judged from readings.

    `evidence`: gpu, `weight_of_evidence`. Premium needs no reason with another best tier, `fast`, and
    enough evidence.
    """
    action = pl.col("action").replace_strict({a: i for i, a in enumerate(ACTIONS)}, return_dtype=pl.UInt8)
    names = dict(enumerate(ACTIONS))
    label = pl.when(pl.col("code") == "xid").then(pl.format("xid:{}", pl.col("value"))).otherwise("code")
    said = told.with_columns(
        pl.struct("code", "value", "limit", "text").struct.json_encode().alias("json"),
        action.alias("act"),
        label.alias("label"),
    )
    soft = [code for code, reason in REASONS.items() if reason.kind in ("judged", "note") and reason.tier != "unknown"]
    firm = pl.col("rank").filter(~pl.col("code").is_in(soft)).max()
    said = said.group_by("gpu", maintain_order=True).agg(
        firm.replace_strict(_TIER_OF_RANK, return_dtype=pl.String).alias("firm"),
        pl.col("rank").max().replace_strict(_TIER_OF_RANK, return_dtype=pl.String).alias("worst"),
        pl.col("rank").max().alias("worst_rank"),
        pl.col("cause").drop_nulls().first(),
        pl.col("act").max().replace_strict(names, return_dtype=pl.String).alias("action"),
        pl.format("[{}]", pl.col("json").str.join(",")).alias("reasons"),
        pl.col("label").str.join(",").alias("codes_now"),
    )
    rows = beside(gpus.select("gpu", "fast"), in_order(said))
    rows = beside(rows, evidence.select("gpu", "weight_of_evidence"))
    premium = (
        (pl.col("worst_rank").fill_null(0) == 0)
        & pl.col("fast")
        & (pl.col("weight_of_evidence") >= limits.min_evidence)
    )
    return rows.select(
        "gpu",
        pl.when(premium.fill_null(value=False))
        .then(pl.lit("premium"))
        .otherwise(pl.col("worst").fill_null("standard"))
        .alias("tier"),
        pl.col("firm").fill_null("standard"),
        "cause",
        pl.col("action").fill_null("none"),
        pl.col("reasons").fill_null("[]"),
        pl.col("codes_now").fill_null("").alias("codes"),
    )
