"""Results of benchmarks, probes and jobs as evidence: kept per GPU and name, compared among peers.

To change what a result says: `summarise` (one GPU's results) or `estimates` (against its peers).
"""

import polars as pl

RESULTS: dict[str, pl.DataType] = {
    "gpu_uuid": pl.String(),
    "scope": pl.String(),
    "workload_class": pl.String(),
    "name": pl.String(),
    "time_ns": pl.Int64(),
    "value": pl.Float64(),
}
"""One row per GPU, scope, name and time: `value` is log speed in the result's own unit. Results of a node are kept
with each of its GPUs, so that a GPU's state is whole."""

SERIES = ["gpu_uuid", "scope", "workload_class", "name"]
SPREAD_FLOOR = 0.002  #: a repeated run differs by 0.11 % (robust, Longhorn SGEMM); days and rooms add as much again
SPREAD_UNKNOWN = 0.01  #: where nobody has repeated a run; inference benchmarks repeat to about 1 %


def add(results: pl.DataFrame, new: pl.DataFrame, *, keep: int = 64) -> pl.DataFrame:
    """`results` with the new ones, each once, the newest `keep` of each series, sorted by series and time."""
    if new.is_empty():
        return results
    touched = new.select("gpu_uuid").unique()
    same = results.join(touched, on="gpu_uuid", how="semi")
    rest = results.join(touched, on="gpu_uuid", how="anti")
    joined = pl.concat([same, new.select(*RESULTS)]).unique().sort(*SERIES, "time_ns", "value")
    newest = joined.group_by(SERIES, maintain_order=True).tail(keep)
    return pl.concat([rest, newest]).sort(*SERIES, "time_ns", "value")


def of_measurements(measurements: pl.DataFrame, node_gpus: pl.DataFrame) -> pl.DataFrame:
    """Rows of MEASUREMENTS as results; those of a node once for each of its GPUs (`node_gpus`: node, gpu_uuid).

    Bigger is faster in the answer. Values that are not above zero have no logarithm and are left out; `telemetry.rows`
    refuses them at the door. Results of a node without known GPUs have nobody to speak of.
    """
    log = pl.col("value").log()
    rows = measurements.filter((pl.col("value") > 0) & pl.col("value").is_finite()).with_columns(
        pl.when(pl.col("higher_is_better")).then(log).otherwise(-log).round(9).alias("value")
    )
    single = rows.filter(pl.col("scope") == "gpu").with_columns(pl.col("subject").alias("gpu_uuid"))
    whole = rows.filter(pl.col("scope") == "node").join(
        node_gpus.select("gpu_uuid", pl.col("node").alias("subject")), on="subject"
    )
    return pl.concat([part.select(*RESULTS) for part in (single, whole)])


def summarise(results: pl.DataFrame, *, half_life_s: float = 30 * 86_400.0) -> pl.DataFrame:
    """One row per series: `middle` (weighted median), `weight` (effective number), `spread`, `samples`, `newest_ns`.

    A result weighs half for each half-life that it is older than the newest of its series: evidence ages by newer
    evidence, not by the calendar. `spread` is 1.4826 MAD, null for a single result.
    """
    age = (pl.col("time_ns").max().over(SERIES) - pl.col("time_ns")).cast(pl.Float64) / (half_life_s * 1e9)
    rows = results.with_columns((-age * 0.6931471805599453).exp().alias("w")).sort(*SERIES, "value")
    total = pl.col("w").sum().over(SERIES)
    above = pl.col("w").cum_sum().over(SERIES)
    rows = rows.with_columns(
        (above >= total / 2 * (1 - 1e-12)).alias("reached"), (above > total / 2 * (1 + 1e-12)).alias("passed")
    )
    low = pl.col("value").filter(pl.col("reached")).first()
    high = pl.col("value").filter(pl.col("passed")).first()
    weight = pl.col("w").sum() ** 2 / (pl.col("w") ** 2).sum()
    plain = pl.col("value").median()
    return rows.group_by(SERIES, maintain_order=True).agg(
        ((low + high) / 2).alias("middle"),
        weight.alias("weight"),
        pl.when(pl.len() > 1).then((pl.col("value") - plain).abs().median() * 1.4826).alias("spread"),
        pl.len().alias("samples"),
        pl.col("time_ns").max().alias("newest_ns"),
    )


def estimates(summaries: pl.DataFrame, gpus: pl.DataFrame, *, min_peers: float = 4) -> pl.DataFrame:
    """Log speed against the peers: gpu_uuid, workload_class, source (measurement or node), mean, variance, samples.

    Peers are of one peer group, name, class and scope: each GPU's (or node's) median against the median of all those
    medians. The variance is the pooled run-to-run variance over the effective number of results, plus a floor. Null
    `mean` where there are fewer than `min_peers` peers. `gpus`: gpu_uuid, node, peer_group.
    """
    rows = summaries.join(gpus.select("gpu_uuid", "node", "peer_group"), on="gpu_uuid")
    subject = pl.when(pl.col("scope") == "node").then("node").otherwise("gpu_uuid").alias("subject")
    rows = rows.with_columns(subject).sort("gpu_uuid")
    contest = ["scope", "name", "workload_class", "peer_group"]
    # A node speaks once, whichever of its GPUs holds the results; the one that holds the most holds them all.
    subjects = rows.sort("samples", descending=True, maintain_order=True).unique(
        [*contest, "subject"], keep="first", maintain_order=True
    )
    peers = subjects.group_by(contest).agg(
        pl.col("middle").median().alias("typical"),
        pl.col("spread").median().alias("pooled"),
        pl.len().alias("peers"),
    )
    compared = subjects.join(peers, on=contest)
    run = pl.max_horizontal(pl.coalesce("spread", "pooled"), "pooled").fill_null(SPREAD_UNKNOWN)
    compared = compared.select(
        *contest, "subject",
        pl.when(pl.col("peers") >= min_peers).then(pl.col("middle") - pl.col("typical")).alias("mean"),
        (run**2 / pl.col("weight") + SPREAD_FLOOR**2).alias("variance"),
        pl.col("samples").cast(pl.UInt32),
    )  # fmt: skip
    return rows.select("gpu_uuid", "subject", *contest).join(compared, on=[*contest, "subject"]).select(
        "gpu_uuid", "workload_class",
        pl.when(pl.col("scope") == "node").then(pl.lit("node")).otherwise(pl.lit("measurement")).alias("source"),
        "mean", "variance", "samples",
    ).sort("gpu_uuid", "workload_class", "source", "mean")  # fmt: skip
