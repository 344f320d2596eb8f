"""What of a step is news: whose row is published, and what the state keeps of it.

To publish a row for another change: one expression in `with_news`.
"""

import polars as pl

from analytics import safety
from analytics.inputs import Step
from analytics.keys import beside, known_in_order, once
from analytics.state import GPU_SCHEMA

SPEED_DRIFT = 1e-3  #: a speed that moved by less, because its peers did, is not published again


def with_news(now: pl.DataFrame, step: Step) -> pl.DataFrame:
    """The rows that are to be published, `tier` and what goes with it as decided."""
    drift = ((pl.col("speed_now") - pl.col("speed")).abs() > SPEED_DRIFT) | (
        pl.col("speed_now").is_null() != pl.col("speed").is_null()
    )
    moved = pl.col("tier_now").ne_missing(pl.col("tier"))
    others = ("node", "peer_group", "power_limit_w", "stale")
    changed = (
        pl.col("news")
        | drift.fill_null(value=False)
        | (pl.col("codes_now") != pl.col("codes"))
        | moved
        | pl.any_horizontal(pl.col(name).ne_missing(pl.col(f"{name}_before")) for name in others)
    )
    caused = pl.lit(step.window_end_ns) if step.windows is not None else pl.col("touched_ns").fill_null(step.as_of_ns)
    if not now["news"].all():
        now = now.filter(changed.fill_null(value=True))
    return now.with_columns(
        pl.when(moved).then(caused).otherwise("tier_since_ns").alias("tier_since_ns"),
        caused.alias("caused_ns"),
        pl.col("tier").alias("tier_before"),
        pl.col("tier_now").alias("tier"),
        pl.col("codes_now").alias("codes"),
        pl.col("speed_now").alias("speed"),
    )


def remembered(rows: pl.DataFrame, public: pl.DataFrame) -> pl.DataFrame:
    """Rows of the state with what was published of them."""
    told = ("tier", "tier_since_ns", "codes", "speed", *safety.MEMORY)
    if len(public) == len(rows):
        return rows.select(*GPU_SCHEMA).with_columns(public[name] for name in told)
    kept = public.select("gpu", *(pl.col(name).alias(f"_{name}") for name in told), pl.lit(value=True).alias("_told"))
    joined = beside(rows, kept)
    return joined.with_columns(pl.when("_told").then(f"_{name}").otherwise(name).alias(name) for name in told).select(
        *GPU_SCHEMA
    )


def differing(before: pl.DataFrame, after: pl.DataFrame) -> pl.DataFrame:
    """gpu: whose holds are no longer the same."""
    if before.equals(after):
        return before.select("gpu").clear()
    columns = list(before.columns)
    gone = before.join(after, on=columns, how="anti")
    come = after.join(before, on=columns, how="anti")
    return pl.concat([gone, come]).select("gpu").unique().sort("gpu")


def primary_of(known: pl.DataFrame) -> pl.DataFrame:
    """One row per GPU with evidence: its primary class, speed and interval there, and how many peers have some too."""
    rows = known.filter(pl.col("scope") == "gpu") if (known["scope"] != "gpu").any() else known
    rows = rows.with_columns(
        (pl.col("samples") + pl.col("results")).alias("weight_of_evidence"),
        pl.len().over("contest").cast(pl.UInt32).alias("peers"),
    )
    alone = once(rows)
    first = rows.filter(alone)
    if len(first) < len(rows):
        several = rows.filter(~alone).sort(
            "gpu", "weight_of_evidence", "workload_class", descending=[False, True, False]
        )
        first = pl.concat([first, several.unique("gpu", keep="first", maintain_order=True)]).sort("gpu")
    return known_in_order(first).select(
        "gpu", "workload_class", "peers", "weight_of_evidence",
        *(pl.col(name).round(6) for name in ("speed", "low", "high")),
        pl.col("samples").alias("evidence"),
    )  # fmt: skip
