"""Empirical Bayes: what one subject's few results say, once the spread of the whole group is known.

To shrink another effect: its rows through `run_spread` (how sure is one result) and `shrunk` (how far subjects differ).
"""

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import digamma, polygamma, stdtrit

MIN_REPEATED = 4  #: subjects with repeated results before a group's spread is known at all; three have no middle
MAX_DOF = 200.0  #: beyond it Student's t is a normal for every purpose here
SPREAD_FLOOR = 0.0003  #: log; results are printed to four digits or so, and equal ones prove no more than that
Z90 = 1.6448536269514722  #: 0.95 quantile of the normal

Floats = NDArray[np.float64]


def run_spread(series: pl.DataFrame, *, by: Sequence[str], unknown: float = 0.01) -> pl.DataFrame:
    """The run-to-run spread of each series, moderated by its group's; heavy tails included.

    Grain: the rows of `series`, same order. Reads `run_variance` (sample variance of log results, null for a single
    one) and `weight` (effective number of results). Adds `spread` (standard deviation of one run), `spread_dof` (what
    it is worth, degrees of freedom) and `spread_known` (false: nobody in the group repeats, `spread` is `unknown`).

    The variances of a group are s0^2 d0 / chi^2(d0): their middle s0^2 and their own scatter d0 come from the moments
    of log variance; each series then has (d0 s0^2 + d s^2) / (d0 + d) with d0 + d degrees of freedom. A group whose
    members are restless to very different degrees has few degrees of freedom, hence long-tailed intervals. Smyth 2004,
    Statistical Applications in Genetics and Molecular Biology 3(1), article 3.
    """
    dof = (pl.col("weight") - 1).clip(0.1, MAX_DOF)
    own = pl.when(pl.col("weight") > 1).then(pl.max_horizontal("run_variance", pl.lit(SPREAD_FLOOR**2)))
    rows = series.with_columns(own.alias("_own"), pl.when(own.is_not_null()).then(dof).alias("_dof"))
    half = rows["_dof"].to_numpy() / 2
    scatter = pl.Series("_scatter", polygamma(1, half)).fill_nan(None)
    centred = rows["_own"].log() - pl.Series(digamma(half) - np.log(half)).fill_nan(None)
    rows = rows.with_columns(centred.alias("_log"), scatter)
    groups = rows.group_by(by, maintain_order=True).agg(
        pl.col("_log").count().alias("_repeated"),
        pl.col("_log").mean().alias("_middle"),
        (pl.col("_log").var() - pl.col("_scatter").mean()).alias("_excess"),
    )
    prior_dof = _prior_dof(groups["_excess"].fill_null(0.0).to_numpy())
    middle = np.exp(groups["_middle"].fill_null(0.0).to_numpy() + digamma(prior_dof / 2) - np.log(prior_dof / 2))
    groups = groups.with_columns(pl.Series("_prior_dof", prior_dof), pl.Series("_prior", middle))
    rows = rows.join(groups, on=list(by), how="left", maintain_order="left", nulls_equal=True)
    known = pl.col("_repeated") >= MIN_REPEATED
    mine, prior = pl.col("_dof").fill_null(0.0), pl.col("_prior_dof")
    moderated = ((prior * pl.col("_prior") + mine * pl.col("_own").fill_null(0.0)) / (prior + mine)).sqrt()
    alone = pl.max_horizontal(pl.col("_own").sqrt(), pl.lit(unknown))
    return rows.select(
        *series.columns,
        pl.when(known).then(moderated).otherwise(alone).alias("spread"),
        pl.when(known).then((prior + mine).clip(upper_bound=MAX_DOF)).otherwise(MAX_DOF).alias("spread_dof"),
        known.alias("spread_known"),
    )


def _prior_dof(excess: Floats) -> Floats:
    """d0 with trigamma(d0 / 2) = excess, by Newton's method; MAX_DOF where the variances scatter by chance alone."""
    target = np.maximum(excess, float(polygamma(1, MAX_DOF / 2)))
    half = 0.5 + 1 / target
    for _ in range(20):
        value = polygamma(1, half)
        half = half + value * (1 - value / target) / polygamma(2, half)
    return np.asarray(2 * half)


def median_variance(weight: pl.Expr) -> pl.Expr:
    """Variance of the median of `weight` runs of variance 1: 1 for one or two runs, pi/2 over their number for many.

    Exact for one, two and many normal runs, within an eighth between, where even numbers do better than odd ones.
    Kenney and Keeping 1962, section 2.13.
    """
    many = np.pi / 2 - 1
    return (1 + many * (1 - 2 / pl.max_horizontal(weight, pl.lit(2.0))) ** 0.8) / weight


def normal_equivalent(variance: pl.Expr, dof: pl.Expr) -> pl.Expr:
    """The variance of the normal whose 90 % interval is as wide as Student's with `dof` degrees of freedom."""

    def widened(values: pl.Series) -> pl.Series:
        # Most of a group has the same degrees of freedom, and the quantile is slow.
        freedom, which = np.unique(np.maximum(values.struct.field("d").to_numpy(), 1.0), return_inverse=True)
        factor = (stdtrit(freedom, 0.95) / Z90)[which]
        return pl.Series(values.struct.field("v").to_numpy() * factor**2)

    both = pl.struct(variance.alias("v"), dof.alias("d"))
    return both.map_batches(widened, return_dtype=pl.Float64, is_elementwise=True)


def shrunk(effects: pl.DataFrame, *, by: Sequence[str], known: str | None = None, min_peers: float = 4) -> pl.DataFrame:
    """Effects drawn towards their group's middle, 0, by as much as their own noise deserves.

    Grain: the rows of `effects`, same order; `mean` and `variance` replaced. Adds `between` (variance of the true
    effects in the group: observed mean square less the mean noise, at least the standard error of that difference: a
    group that looks all alike may still differ by as much) and `reliability`, between / (between + noise): 1 leaves an
    effect as measured, near 0 says that the group's differences are noise. Groups with fewer than `min_peers` effects,
    and rows where `known` (a Boolean column) is false, stay as they are, with both null: without a noise that was
    measured there is nothing to set against the differences. James and Stein 1961; Efron and Morris 1973.
    """
    told = pl.col(known) if known else pl.lit(value=True)
    square, count = (pl.when(told).then("mean") ** 2).mean().over(by), pl.when(told).then("mean").count().over(by)
    noise = pl.when(told).then("variance").mean().over(by)
    least = noise * (2 / count).sqrt()
    between = pl.when(told & (count >= min_peers)).then(pl.max_horizontal(square - noise, least))
    rows = effects.with_columns(between.alias("between"))
    reliability = (pl.col("between") / (pl.col("between") + pl.col("variance"))).alias("reliability")
    rows = rows.with_columns(reliability)
    factor = pl.col("reliability").fill_null(1.0)
    return rows.with_columns((pl.col("mean") * factor).alias("mean"), (pl.col("variance") * factor).alias("variance"))
