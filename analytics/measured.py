"""Results of benchmarks, probes and jobs as evidence: kept per GPU and name, compared among peers.

To change what a result says: `summarise` (one GPU's results) or `estimates` (against its peers).
"""

import polars as pl

from analytics.keys import KEY
from analytics.ownership import node_only
from analytics.shrinkage import median_variance, normal_equivalent, run_spread, shrunk

RESULTS: dict[str, pl.DataType] = {
    "gpu": KEY,
    "scope": pl.String(),
    "workload_class": pl.String(),
    "name": pl.String(),
    "time_ns": pl.Int64(),
    "value": pl.Float64(),
}
"""One row per GPU, scope, name and time: `value` is log speed in the result's own unit. Results of a node are kept
with each of its GPUs, so that a GPU's state is whole."""

BROUGHT: dict[str, pl.DataType] = {"gpu_uuid": pl.String()} | {n: kind for n, kind in RESULTS.items() if n != "gpu"}
"""The same before the scorer has numbered its GPUs."""

SERIES = ["gpu", "scope", "workload_class", "name"]
CONTEST = ["scope", "name", "workload_class", "peer_group"]
LATER_RUNS = 8  #: an interval speaks of the median of so many later runs: what people compare it with, noise included
SPREAD_UNKNOWN = 0.01  #: where nobody has repeated a run; inference benchmarks repeat to about 1 %


def add(results: pl.DataFrame, new: pl.DataFrame, *, keep: int = 64) -> pl.DataFrame:
    """`results` with the new ones, each once, the newest `keep` of each series, sorted by series and time."""
    if new.is_empty():
        return results
    touched = new.select("gpu").unique()
    same = results.join(touched, on="gpu", how="semi")
    rest = results.join(touched, on="gpu", how="anti")
    joined = pl.concat([same, new.select(*RESULTS)]).unique().sort(*SERIES, "time_ns", "value")
    newest = joined.group_by(SERIES, maintain_order=True).tail(keep)
    return pl.concat([rest, newest]).sort(*SERIES, "time_ns", "value")


def of_measurements(measurements: pl.DataFrame, node_gpus: pl.DataFrame) -> pl.DataFrame:
    """Rows of MEASUREMENTS as rows of BROUGHT; those of a node once for each of its GPUs (`node_gpus`: node, gpu_uuid).

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
    return pl.concat([part.select(*BROUGHT) for part in (single, whole)])


def summarise(results: pl.DataFrame, *, half_life_s: float = 30 * 86_400.0) -> pl.DataFrame:
    """One row per series: `middle` (weighted median), `weight` (effective number), `run_variance`, `samples`,
    `newest_ns`.

    A result weighs half for each half-life that it is older than the newest of its series: evidence ages by newer
    evidence, not by the calendar. `run_variance` is the weighted sample variance (Kish 1965), null for a single result.
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
    heavy = pl.col("w").sum()
    about = (pl.col("w") * pl.col("value")).sum() / heavy
    squares = (pl.col("w") * (pl.col("value") - about) ** 2).sum()
    return rows.group_by(SERIES, maintain_order=True).agg(
        ((low + high) / 2).alias("middle"),
        weight.alias("weight"),
        pl.when(weight > 1 + 1e-6).then(squares / (heavy - (pl.col("w") ** 2).sum() / heavy)).alias("run_variance"),
        pl.len().alias("samples"),
        pl.col("time_ns").max().alias("newest_ns"),
    )


def estimates(summaries: pl.DataFrame, gpus: pl.DataFrame, *, min_peers: float = 4) -> pl.DataFrame:
    """Log speed against the peers: gpu, workload_class, source (measurement or node), mean, variance, samples.

    Peers are of one peer group, name, class and scope: each GPU's (or node's) median against the median of all those
    medians, then shrunk (`analytics/shrinkage.py`). The variance is the moderated run-to-run variance over the
    effective number of results, such that a normal interval of it covers as Student's t does. Null `mean` where there
    are fewer than `min_peers` peers. Where GPUs of a node do not differ beyond their runs (`ownership.node_only`),
    their results are taken as their node's, source and all: no GPU is singled out by its neighbours' noise. `gpus`:
    gpu, node, peer_group.
    """
    rows = summaries.join(gpus.select("gpu", "node", "peer_group"), on="gpu", maintain_order="left")
    contests = rows.select(CONTEST).unique(maintain_order=True).with_row_index("contest")
    rows = rows.join(contests, on=CONTEST, how="left", maintain_order="left", nulls_equal=True)
    alone = node_only(rows.filter((pl.col("scope") == "gpu") & pl.col("node").is_not_null()), by=["contest"])
    of_node = (pl.col("scope") == "node") | pl.col("contest").is_in(alone["contest"].implode())
    rows = rows.with_columns(of_node.alias("of_node")).with_columns(
        pl.when("of_node").then("node").otherwise(pl.col("gpu").cast(pl.String)).alias("subject")
    )
    compared = _compared(_subjects(rows.filter(pl.col("subject").is_not_null())), min_peers=min_peers)
    return rows.select("gpu", "workload_class", "contest", "subject", "of_node").join(
        compared, on=["contest", "subject"]
    ).select(
        "gpu", "workload_class",
        pl.when(pl.col("of_node")).then(pl.lit("node")).otherwise(pl.lit("measurement")).alias("source"),
        "mean", "variance", "samples",
    ).sort("gpu", "workload_class", "source", "mean")  # fmt: skip


def _subjects(rows: pl.DataFrame) -> pl.DataFrame:
    """One row per contest and subject: who competes, with what all its results say together."""
    keys, told = ["contest", "subject"], ["middle", "weight", "run_variance", "samples"]
    own = rows.filter(~pl.col("of_node")).select(*keys, *told)
    # A node speaks once, whichever of its GPUs holds the results; the one that holds the most holds them all.
    whole = rows.filter(pl.col("scope") == "node").sort("gpu").sort(
        "samples", descending=True, maintain_order=True
    ).unique(keys, keep="first", maintain_order=True)  # fmt: skip
    # Its GPUs' own results, where they say nothing but the node's: as many as one GPU has, since GPUs of one job agree.
    freedom = (pl.col("weight") - 1).clip(lower_bound=0)
    pooled = pl.when(freedom.sum() > 0).then((freedom * pl.col("run_variance").fill_null(0.0)).sum() / freedom.sum())
    joint = rows.filter((pl.col("scope") == "gpu") & pl.col("of_node")).group_by(keys, maintain_order=True).agg(
        pl.col("middle").median(), pl.col("weight").max(), pooled.alias("run_variance"), pl.col("samples").sum(),
    )  # fmt: skip
    parts = [own, whole.select(*keys, *told), joint.select(*keys, *told)]
    return pl.concat(parts, how="vertical_relaxed").sort(keys)


def _compared(subjects: pl.DataFrame, *, min_peers: float) -> pl.DataFrame:
    """contest, subject, mean, variance, samples of subjects (one row each) against the others of their contest."""
    by = ["contest"]
    rows = run_spread(subjects, by=by, unknown=SPREAD_UNKNOWN)
    later = median_variance(pl.lit(float(LATER_RUNS)))
    noise = pl.col("spread") ** 2 * (median_variance(pl.col("weight")) + later)
    usual = pl.when(pl.len().over(by) >= min_peers).then(pl.col("middle").median().over(by))
    rows = rows.with_columns((pl.col("middle") - usual).alias("mean"), noise.alias("variance"))
    rows = shrunk(rows, by=by, known="spread_known", min_peers=min_peers)
    return rows.select(
        "contest", "subject", "mean",
        normal_equivalent(pl.col("variance"), pl.col("spread_dof")).alias("variance"),
        pl.col("samples").cast(pl.UInt32),
    )  # fmt: skip
