"""Empirical Bayes: intervals that cover what they say, effects drawn in by as much as their noise deserves.

To add a case: a made-up group with known spreads, and what is then known of it.
"""

import numpy as np
import polars as pl
import pytest

from analytics import evidence, measured
from analytics.keys import KEY
from analytics.shrinkage import median_variance, normal_equivalent, run_spread, shrunk


def spreads(rows: list[tuple[float, float | None]]) -> pl.DataFrame:
    frame = pl.DataFrame(rows, schema={"weight": pl.Float64, "run_variance": pl.Float64}, orient="row")
    return run_spread(frame.with_columns(g=pl.lit("all")), by=["g"])


def test_a_gpu_measured_once_takes_its_spread_from_the_group() -> None:
    """Nine others repeat to 1 %: one run of the tenth is known to about that."""
    rng = np.random.default_rng(0)
    told = spreads([(9.0, float(rng.normal(0, 0.01, 9).var(ddof=1))) for _ in range(9)] + [(1.0, None)])
    assert told["spread"][9] == pytest.approx(0.01, rel=0.3)
    assert told["spread_known"].all()


def test_while_hardly_anybody_repeats_the_spread_is_taken_to_be_wide() -> None:
    """Two repeated series are no group; identical results prove no more than the digits they are printed with."""
    told = spreads([(3.0, 1e-8), (3.0, 1e-8), (1.0, None)])
    assert told["spread"].to_list() == [0.01] * 3
    assert not told["spread_known"].any()
    same = spreads([(5.0, 0.0)] * 6)
    assert same["spread"].to_list() == pytest.approx([0.0003] * 6, rel=0.2)


def test_a_group_of_unequal_restlessness_has_few_degrees_of_freedom() -> None:
    """Where some GPUs vary ten times as much as others, nobody's single run is as sure as a normal says."""
    rng = np.random.default_rng(3)
    equal = [(9.0, float(rng.normal(0, 0.01, 9).var(ddof=1))) for _ in range(60)]
    mixed = [(9.0, v * s) for (_, v), s in zip(equal, rng.choice([1, 100], 60), strict=True)]
    assert spreads([*equal, (1.0, None)])["spread_dof"][60] > 20
    assert spreads([*mixed, (1.0, None)])["spread_dof"][60] < 4


@pytest.mark.parametrize("runs", [1, 2, 3, 10, 50])
def test_the_variance_of_a_median_is_that_of_simulated_medians(runs: int) -> None:
    """Within an eighth, from one run to many."""
    drawn = np.median(np.random.default_rng(1).normal(size=(20_000, runs)), axis=1).var()
    said = pl.select(median_variance(pl.lit(float(runs)))).item()
    assert said == pytest.approx(drawn, rel=0.125)


def test_a_normal_interval_of_the_equivalent_variance_is_as_wide_as_students() -> None:
    """Four degrees of freedom: 2.132 standard deviations to the 95th percentile."""
    variance = pl.select(normal_equivalent(pl.lit(1.0), pl.lit(4.0))).item()
    assert evidence.Z90 * variance**0.5 == pytest.approx(2.1318, abs=1e-3)


def test_differences_that_are_noise_are_drawn_to_the_middle_and_real_ones_are_left() -> None:
    """Shrinking beats the raw numbers where the noise is large, and changes nothing where it is small."""
    rng = np.random.default_rng(5)
    true = rng.normal(0, 0.01, 400)
    for noise in (0.02, 0.0005):
        seen = true + rng.normal(0, noise, 400)
        frame = pl.DataFrame({"g": ["all"] * 400, "mean": seen, "variance": [noise**2] * 400})
        told = shrunk(frame, by=["g"])
        error, raw = float(np.mean((told["mean"].to_numpy() - true) ** 2)), float(np.mean((seen - true) ** 2))
        assert error < raw * (0.35 if noise > 0.01 else 1.02)
        assert told["reliability"][0] == pytest.approx(0.01**2 / (0.01**2 + noise**2), abs=0.06)
        assert (told["variance"] <= noise**2).all()


def test_without_a_measured_noise_and_with_few_peers_nothing_is_shrunk() -> None:
    """Three GPUs, or a group in which nobody repeats, stay as they are."""
    frame = pl.DataFrame({"g": ["a"] * 3, "mean": [0.0, 0.1, -0.1], "variance": [0.01] * 3, "known": [True] * 3})
    assert shrunk(frame, by=["g"])["mean"].to_list() == [0.0, 0.1, -0.1]
    unknown = pl.concat([frame, frame]).with_columns(known=pl.lit(value=False))
    assert shrunk(unknown, by=["g"], known="known")["mean"].to_list() == [0.0, 0.1, -0.1] * 2


@pytest.mark.parametrize("tails", ["normal", "heavy"])
def test_intervals_of_few_results_cover_nine_later_medians_of_ten(tails: str) -> None:
    """Made-up GPUs, three results each judged against the median of eight later ones, also where GPUs differ in
    restlessness by a factor of ten."""
    rng = np.random.default_rng(11)
    gpus, late = 300, 8
    restless = 0.005 * (np.exp(rng.normal(0, 0.7, gpus)) if tails == "heavy" else np.ones(gpus))
    true = rng.normal(0, 0.02, gpus)
    runs = true[:, None] + restless[:, None] * rng.normal(size=(gpus, 3))
    later = np.median(true[:, None] + restless[:, None] * rng.normal(size=(gpus, late)), axis=1)
    results = pl.DataFrame(
        [(i, "gpu", "compute", "p", j, float(runs[i, j])) for i in range(gpus) for j in range(3)],
        schema=measured.RESULTS, orient="row",
    )  # fmt: skip
    inventory = pl.DataFrame(
        {"gpu": pl.Series(range(gpus), dtype=KEY), "node": [f"n{i}" for i in range(gpus)], "peer_group": ["x"] * gpus}
    )
    said = evidence.combine(measured.estimates(measured.summarise(results), inventory))
    typical = float(np.median(np.median(runs, axis=1)))
    shown = said.with_columns(pl.Series("true", np.exp(later - typical)))
    assert 0.86 <= shown.select(pl.col("true").is_between("low", "high").mean()).item() <= 0.95
