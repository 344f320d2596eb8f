"""From findings to a tier: N of M judgements before a change, hysteresis on the way back, the worst reason decides.

To change when a finding counts: `judge`. What each reason leads to is the table in `analytics/reasons.py`.
"""

from typing import Any

import polars as pl

from analytics.keys import KEY, beside, known_in_order, once
from analytics.reasons import JUDGED, REASONS, WORDED
from analytics.thresholds import Thresholds

MAX_OF = 16  #: judgements kept, as bits of a mask


MEMORY: dict[str, tuple[pl.DataType, Any]] = {
    f"{prefix}_{code}": (kind, first)
    for prefix, kind, first in (("m", pl.UInt32(), 0), ("a", pl.Boolean(), False), ("v", pl.Float64(), None))
    for code in JUDGED
} | {f"t_{code}": (pl.String(), None) for code in WORDED}
"""Per code: `m_` the last judgements as bits, newest lowest; `a_` whether it counts; `v_`, `t_` what was said last."""

SCHEMA: dict[str, pl.DataType] = {"gpu": KEY} | {name: kind for name, (kind, _) in MEMORY.items()}
"""The memory of judgements: only GPUs of which some bit is set have a row; all others are clean."""


def judge(judged: pl.DataFrame, findings: pl.DataFrame, *, limits: Thresholds) -> pl.DataFrame:
    """The memory (rows of SCHEMA) moved on by one step's findings.

    `findings`: one row per gpu with `code` (Boolean, null or absent: not judged), `code_value`, `code_times` where one
    step holds several judgements, and `code_text` for a reason of `WORDED`; in the order of gpu. A reason begins with N
    of the last M and ends when M in a row are clean; a state begins with one.
    """
    if not limits.need <= limits.of <= MAX_OF or limits.need < 1:
        raise ValueError(f"need {limits.need:g} of {limits.of:g}: at least 1, at most all, of at most {MAX_OF}")
    codes = [code for code in JUDGED if code in findings.columns]
    # A clean GPU that stays clean has nothing to remember: in a healthy fleet that is nearly all of them.
    struck = findings.filter(pl.any_horizontal(codes)).select("gpu")
    rows = pl.concat([judged.select("gpu"), struck]).unique().sort("gpu")
    rows = beside(rows, judged).with_columns(
        pl.col(name).fill_null(first) for name, (_, first) in MEMORY.items() if first is not None
    )
    rows = beside(rows, findings)
    changes: list[pl.Expr] = []
    for code in codes:
        need = int(limits.need) if REASONS[code].kind == "judged" else 1
        mask = remember(
            f"m_{code}", code, of=int(limits.of), times=f"{code}_times" if f"{code}_times" in rows.columns else None
        )
        active = (mask.bitwise_count_ones() >= need) | (pl.col(f"a_{code}") & (mask > 0))
        changes += [
            mask.alias(f"m_{code}"),
            active.alias(f"a_{code}"),
            pl.when(mask > 0)
            .then(pl.when(pl.col(code)).then(f"{code}_value").otherwise(f"v_{code}"))
            .alias(f"v_{code}"),
        ]
        if code in WORDED:
            words = pl.when(pl.col(code)).then(f"{code}_text").otherwise(f"t_{code}")
            changes.append(pl.when(mask > 0).then(words).alias(f"t_{code}"))
    return remembered(rows.with_columns(changes).select(*SCHEMA))


def remembered(judged: pl.DataFrame) -> pl.DataFrame:
    """The memory without GPUs of which nothing is left in it."""
    return judged.filter(pl.any_horizontal(pl.col(f"m_{code}") > 0 for code in JUDGED))


def remember(mask: str, finding: str, *, of: int, times: str | None = None) -> pl.Expr:
    """The mask of the last `of` judgements with this finding added, `times` times; unchanged where it is null."""
    old = pl.col(mask).cast(pl.UInt64)
    if times is None:
        new = (old * 2 + pl.col(finding).cast(pl.UInt64)) % 2**of
    else:
        shift = pl.lit(2, dtype=pl.UInt64).pow(pl.col(times).fill_null(0).clip(0, of)).cast(pl.UInt64)
        new = (old * shift + pl.col(finding).cast(pl.UInt64) * (shift - 1)) % 2**of
    return pl.coalesce(new, old).cast(pl.UInt32)


def slow_findings(speeds: pl.DataFrame, judged: pl.DataFrame, new: pl.DataFrame, *, limits: Thresholds) -> pl.DataFrame:
    """Findings about speed, for the GPUs with new evidence: very_slow, slow, node_slow, and premium's two.

    `speeds`: rows of `state.speeds`. `judged`: the memory (`judge`). `new`: gpu,
    `gpu_times`, `node_times` and `log_speed` of this window, null for results. The class in which the GPU is worst
    counts. Nothing is judged without an interval. Slow is a GPU that is both `slow_high` and further from typical than
    its peers are from each other. To begin, the window itself must be slow too: one wild window would else be judged
    again and again, for as long as it colours the estimate. N results that say so need no window: slow silicon shows
    in no clock.
    """
    margin = limits.clear_high - limits.slow_high
    rows = _with_usual(speeds, limits=limits)
    ordinary = pl.max_horizontal("high", pl.lit(1.0))  # whatever the interval says: its peers are no faster
    rows = rows.with_columns(
        pl.when(pl.col("speed") < pl.col("usual")).then("high").otherwise(ordinary).alias("begins"),
        pl.when(pl.col("speed") < pl.col("usual") + margin).then("high").otherwise(ordinary).alias("stays"),
    )
    worst = _worst(rows, limits=limits)
    counts = judged.select("gpu", "a_slow", "a_very_slow", "a_node_slow")
    rows = beside(new, worst)
    rows = beside(rows, counts)
    own, whole = pl.col("gpu_times") > 0, pl.col("node_times") > 0

    def below(begins: str, stays: str, limit: float, code: str) -> pl.Expr:
        active = pl.col(f"a_{code}").fill_null(value=False)
        itself = (pl.col("log_speed").exp() < limit).fill_null(value=True) | (pl.col("slow_results") >= limits.need)
        return pl.when(active).then(pl.col(stays) < limit + margin).otherwise((pl.col(begins) < limit) & itself)

    return rows.select(
        "gpu",
        pl.when(own).then(below("begins", "stays", limits.slow_high, "slow")).alias("slow"),
        pl.when(own).then(below("high", "high", limits.very_slow_high, "very_slow")).alias("very_slow"),
        pl.when(whole).then(below("node_begins", "node_stays", limits.slow_high, "node_slow")).alias("node_slow"),
        pl.col("high").alias("slow_value"),
        pl.col("high").alias("very_slow_value"),
        pl.col("node_high").alias("node_slow_value"),
        pl.col("gpu_times").alias("slow_times"),
        pl.col("gpu_times").alias("very_slow_times"),
        pl.col("node_times").alias("node_slow_times"),
        pl.when(own).then(pl.col("low") >= limits.premium_low).alias("fast_in"),
        pl.when(own).then(pl.col("low") < limits.premium_exit_low).alias("fast_out"),
    )


def _worst(rows: pl.DataFrame, *, limits: Thresholds) -> pl.DataFrame:
    """One row per gpu: the least of each end over its classes, of its own evidence and of its node's."""
    gpu, node = (pl.col("scope") == "gpu") & (pl.col("source") != "node"), pl.col("scope") == "node"
    rows = rows.with_columns(
        *(pl.when(gpu).then(name).alias(name) for name in ("low", "high", "begins", "stays")),
        *(pl.when(node).then(name).alias(f"node_{name}") for name in ("high", "begins", "stays")),
        pl.when(gpu & (pl.col("begins") < limits.slow_high)).then("results").fill_null(0).alias("slow_results"),
    ).select("gpu", *_ENDS, "slow_results")
    alone = once(rows)
    several = rows.filter(~alone).group_by("gpu").agg(pl.col(*_ENDS).min(), pl.col("slow_results").max())
    if several.is_empty():
        return rows
    return known_in_order(pl.concat([rows.filter(alone), several]).sort("gpu"))


_ENDS = ("low", "high", "begins", "stays", "node_high", "node_begins", "node_stays")


def _with_usual(speeds: pl.DataFrame, *, limits: Thresholds) -> pl.DataFrame:
    """`speeds` with `usual`: how slow the peers themselves are, `slow_z` robust deviations below typical.

    A deviation is 1.4826 times the median distance of the faster half from typical (Hampel 1974, one side of it), so
    that slow peers do not hide one another; at most `widest_spread`.
    """
    peers = ["contest"] if (speeds["scope"] == "gpu").all() else ["contest", "scope"]
    log = pl.col("speed").log()
    rows = speeds.with_columns((log - log.median().over(peers)).alias("above"))
    spread = pl.when(pl.col("above") >= 0).then("above").median().over(peers) * 1.4826
    return rows.with_columns((-limits.slow_z * spread.clip(upper_bound=limits.widest_spread)).exp().alias("usual"))


def judge_fast(gpus: pl.DataFrame, findings: pl.DataFrame, *, limits: Thresholds) -> pl.DataFrame:
    """`gpus` with `fast` moved on: all of M judgements at or above typical to enter, N of M below it to leave."""
    columns = findings.select("gpu", "fast_in", "fast_out", "slow_times")
    rows = beside(gpus, columns)
    of = int(limits.of)
    into = remember("m_fast_in", "fast_in", of=of, times="slow_times")
    out = remember("m_fast_out", "fast_out", of=of, times="slow_times")
    stays = out.bitwise_count_ones() < int(limits.need)
    fast = pl.when(pl.col("fast")).then(stays).otherwise(into == 2**of - 1)
    return rows.with_columns(fast.alias("fast"), into.alias("m_fast_in"), out.alias("m_fast_out")).select(gpus.columns)
