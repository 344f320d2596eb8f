"""From findings to a tier: N of M judgements before a change, hysteresis on the way back, the worst reason decides.

To change when a finding counts: `judge`. What each reason leads to is the table in `analytics/reasons.py`.
"""

import polars as pl

from analytics.reasons import JUDGED, REASONS, WORDED
from analytics.thresholds import Thresholds

MAX_OF = 16  #: judgements kept, as bits of a mask


def judge(gpus: pl.DataFrame, findings: pl.DataFrame, *, limits: Thresholds) -> pl.DataFrame:
    """`gpus` with its memory of judgements moved on: `m_code` (bits, newest lowest), `a_code` (counts), `v_code`.

    `findings`: one row per gpu_uuid with `code` (Boolean, null or absent: not judged), `code_value`, `code_times`
    where one step holds several judgements, and `code_text` for a reason of `WORDED`. A reason begins
    with N of the last M and ends when M in a row are clean; a state begins with one.
    """
    if not limits.need <= limits.of <= MAX_OF or limits.need < 1:
        raise ValueError(f"need {limits.need:g} of {limits.of:g}: at least 1, at most all, of at most {MAX_OF}")
    rows = gpus.join(findings, on="gpu_uuid", how="left", maintain_order="left")
    changes: list[pl.Expr] = []
    for code in JUDGED:
        if code not in findings.columns:
            continue
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
    return rows.with_columns(changes).select(gpus.columns)


def remember(mask: str, finding: str, *, of: int, times: str | None = None) -> pl.Expr:
    """The mask of the last `of` judgements with this finding added, `times` times; unchanged where it is null."""
    old = pl.col(mask).cast(pl.UInt64)
    if times is None:
        new = (old * 2 + pl.col(finding).cast(pl.UInt64)) % 2**of
    else:
        shift = pl.lit(2, dtype=pl.UInt64).pow(pl.col(times).fill_null(0).clip(0, of)).cast(pl.UInt64)
        new = (old * shift + pl.col(finding).cast(pl.UInt64) * (shift - 1)) % 2**of
    return pl.coalesce(new, old).cast(pl.UInt32)


def slow_findings(speeds: pl.DataFrame, gpus: pl.DataFrame, new: pl.DataFrame, *, limits: Thresholds) -> pl.DataFrame:
    """Findings about speed, for the GPUs with new evidence: very_slow, slow, node_slow, and premium's two.

    `speeds`: rows of `evidence.combine` with `scope` (gpu, node). `new`: gpu_uuid, `gpu_times`, `node_times` and
    `log_speed` of this window, null for results. The class in which the GPU is worst counts. Nothing is judged without
    an interval. Slow is a GPU that is both `slow_high` and further from typical than its peers are from each other. To
    begin, the window itself must be slow too: one wild window would else be judged again and again, for as long as it
    colours the estimate. N results that say so need no window: slow silicon shows in no clock.
    """
    margin = limits.clear_high - limits.slow_high
    rows = _with_usual(speeds, gpus, limits=limits)
    ordinary = pl.max_horizontal("high", pl.lit(1.0))  # whatever the interval says: its peers are no faster
    rows = rows.with_columns(
        pl.when(pl.col("speed") < pl.col("usual")).then("high").otherwise(ordinary).alias("begins"),
        pl.when(pl.col("speed") < pl.col("usual") + margin).then("high").otherwise(ordinary).alias("stays"),
    )
    gpu, node = (pl.col("scope") == "gpu") & (pl.col("source") != "node"), pl.col("scope") == "node"
    worst = rows.group_by("gpu_uuid").agg(
        pl.col("low").filter(gpu).min().alias("low"),
        *(pl.col(name).filter(gpu).min().alias(name) for name in ("high", "begins", "stays")),
        *(pl.col(name).filter(node).min().alias(f"node_{name}") for name in ("high", "begins", "stays")),
        pl.col("results").filter(gpu & (pl.col("begins") < limits.slow_high)).max().fill_null(0).alias("slow_results"),
    )
    rows = new.join(gpus.select("gpu_uuid", "a_slow", "a_very_slow", "a_node_slow"), on="gpu_uuid").join(
        worst, on="gpu_uuid", how="left"
    )
    own, whole = pl.col("gpu_times") > 0, pl.col("node_times") > 0

    def below(begins: str, stays: str, limit: float, code: str) -> pl.Expr:
        counts = pl.col(f"a_{code}")
        itself = (pl.col("log_speed").exp() < limit).fill_null(value=True) | (pl.col("slow_results") >= limits.need)
        return pl.when(counts).then(pl.col(stays) < limit + margin).otherwise((pl.col(begins) < limit) & itself)

    return rows.select(
        "gpu_uuid",
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


def _with_usual(speeds: pl.DataFrame, gpus: pl.DataFrame, *, limits: Thresholds) -> pl.DataFrame:
    """`speeds` with `usual`: how slow the peers themselves are, `slow_z` robust deviations (1.4826 MAD, Hampel 1974)
    below typical; at most `widest_spread` each, so that many slow ones do not hide one another."""
    peers = ["peer_group", "workload_class", "scope"]
    rows = speeds.join(gpus.select("gpu_uuid", "peer_group"), on="gpu_uuid", how="left", maintain_order="left")
    log = pl.col("speed").log()
    spread = (log - log.median().over(peers)).abs().median().over(peers) * 1.4826
    return rows.with_columns((-limits.slow_z * spread.clip(upper_bound=limits.widest_spread)).exp().alias("usual"))


def judge_fast(gpus: pl.DataFrame, findings: pl.DataFrame, *, limits: Thresholds) -> pl.DataFrame:
    """`gpus` with `fast` moved on: all of M judgements at or above typical to enter, N of M below it to leave."""
    columns = findings.select("gpu_uuid", "fast_in", "fast_out", "slow_times")
    rows = gpus.join(columns, on="gpu_uuid", how="left", maintain_order="left")
    of = int(limits.of)
    into = remember("m_fast_in", "fast_in", of=of, times="slow_times")
    out = remember("m_fast_out", "fast_out", of=of, times="slow_times")
    stays = out.bitwise_count_ones() < int(limits.need)
    fast = pl.when(pl.col("fast")).then(stays).otherwise(into == 2**of - 1)
    return rows.with_columns(fast.alias("fast"), into.alias("m_fast_in"), out.alias("m_fast_out")).select(gpus.columns)
