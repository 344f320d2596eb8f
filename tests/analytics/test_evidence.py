"""Evidence kept per GPU and class, its intervals, and its combination by precision.

To add a source's test: its estimates, and what the combination must make of them.
"""

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analytics import evidence, measured
from analytics.keys import KEY

NAMES = {name: number for number, name in enumerate("abcd")}  #: the scorer counts its GPUs
GPUS = pl.DataFrame({"gpu": pl.Series(NAMES.values(), dtype=KEY), "node": ["n"] * 4, "peer_group": ["H100"] * 4})


def told(values: dict[str, list[float]], *, window_s: float = 60.0, half_life_s: float = 21_600.0) -> pl.DataFrame:
    """Evidence after these log speeds, a window each."""
    kept = pl.DataFrame(schema=evidence.TELEMETRY)
    for step in range(max(len(v) for v in values.values())):
        rows = [(NAMES[gpu], "compute", v[step]) for gpu, v in values.items() if step < len(v)]
        speeds = pl.DataFrame(
            rows, schema={"gpu": KEY, "workload_class": pl.String, "log_speed": pl.Float64}, orient="row"
        )
        kept = evidence.add_windows(kept, speeds, window_s=window_s, half_life_s=half_life_s)
    return kept


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(-0.5, 0.5), min_size=1, max_size=12))
def test_the_running_mean_and_spread_are_those_of_the_weighted_values(values: list[float]) -> None:
    """One window at a time gives what all windows at once would."""
    row = told({"a": values}, half_life_s=300.0).row(0, named=True)
    weights = 0.5 ** (np.arange(len(values))[::-1] * 60 / 300)
    mean = float(np.average(values, weights=weights))
    assert row["mean"] == pytest.approx(mean, abs=1e-12)
    assert row["weight"] == pytest.approx(float(weights.sum()))
    assert row["weight2"] == pytest.approx(float((weights**2).sum()))
    assert row["spread"] == pytest.approx(float((weights * (np.array(values) - mean) ** 2).sum()), abs=1e-12)
    assert row["windows"] == len(values)


def test_only_what_gets_new_evidence_ages() -> None:
    """A weekend of idling forgets nothing about the GPU that idles."""
    before = told({"a": [0.1] * 5, "b": [0.1] * 5})
    after = told({"a": [0.1] * 5, "b": [0.1] * 500})
    assert after.filter(pl.col("gpu") == NAMES["a"]).equals(before.filter(pl.col("gpu") == NAMES["a"]))


def test_more_windows_narrow_the_interval_but_not_as_if_they_were_independent() -> None:
    """Ten windows count as one; what clocks cannot say never averages out."""
    rng = np.random.default_rng(0)

    def variance(windows: int) -> float:
        kept = told({gpu: list(rng.normal(0, 0.01, windows)) for gpu in "abcd"}, half_life_s=1e9)
        return float(evidence.estimates(kept, GPUS)["variance"].mean() or 0)

    few, many, endless = variance(5), variance(100), variance(400)
    assert few > many > endless > evidence.MODEL_SD["compute"] ** 2
    model = evidence.MODEL_SD["compute"] ** 2
    assert (few - model) / (many - model) == pytest.approx(10, rel=0.5)


def test_an_interval_of_the_first_window_is_wide() -> None:
    """One window cannot know how much windows differ."""
    row = evidence.combine(evidence.estimates(told({gpu: [0.0] for gpu in "abcd"}), GPUS)).row(0, named=True)
    assert row["high"] - row["low"] > 0.03


def rows(*sources: tuple[str, str, float, float]) -> pl.DataFrame:
    """Estimates of one class: gpu, source, mean, standard deviation."""
    schema = {"gpu": pl.String, "source": pl.String, "mean": pl.Float64, "sd": pl.Float64}
    frame = pl.DataFrame(list(sources), schema=schema, orient="row")
    return frame.select(
        "gpu", pl.lit("compute").alias("workload_class"), "source", "mean",
        (pl.col("sd") ** 2).alias("variance"), pl.lit(3, dtype=pl.UInt32).alias("samples"),
    )  # fmt: skip


def test_sources_are_weighted_by_precision() -> None:
    """An estimate twice as sharp counts four times."""
    row = evidence.combine(rows(("a", "telemetry", 0.0, 0.02), ("a", "measurement", 0.01, 0.01))).row(0, named=True)
    assert row["speed"] == pytest.approx(math.exp(0.008))
    assert (row["source"], row["samples"], row["results"]) == ("both", 6, 3)
    half = evidence.Z90 / math.sqrt(1 / 0.02**2 + 1 / 0.01**2)
    assert row["high"] == pytest.approx(math.exp(0.008 + half))


def test_a_node_stands_in_only_where_nothing_speaks_of_the_gpu() -> None:
    """Evidence about a GPU is never mixed with its neighbours'."""
    mixed = evidence.combine(
        rows(("a", "telemetry", 0.0, 0.01), ("a", "node", -0.3, 0.001), ("b", "node", -0.3, 0.001))
    )
    assert mixed["source"].to_list() == ["telemetry", "node"]
    assert mixed["speed"][0] == 1.0


def test_unknown_estimates_say_nothing() -> None:
    """Too few peers is null, and null is no evidence."""
    unknown = rows(("a", "telemetry", 0.0, 0.01)).with_columns(pl.lit(None, dtype=pl.Float64).alias("mean"))
    assert evidence.combine(unknown).is_empty()


def results(values: dict[str, list[float]], *, apart_s: float = 60.0) -> pl.DataFrame:
    """Results of one probe, one every `apart_s`."""
    data = [
        dict(zip(measured.RESULTS, (NAMES[gpu], "gpu", "compute", "p", int(i * apart_s * 1e9), v), strict=True))
        for gpu, series in values.items()
        for i, v in enumerate(series)
    ]
    return pl.DataFrame(data, schema=measured.RESULTS)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=9))
def test_results_of_one_day_have_their_plain_median(values: list[float]) -> None:
    """Weights that are all about one change nothing, also for an even number of results."""
    middle = measured.summarise(results({"a": values}), half_life_s=1e15)["middle"][0]
    assert middle == pytest.approx(float(np.median(values)), abs=1e-9)


def test_old_results_lose_their_say_to_new_ones() -> None:
    """Repaired half a year ago: three new runs outweigh nine old ones."""
    old = results({"a": [0.0] * 9})
    new = results({"a": [1.0] * 3}).with_columns(pl.col("time_ns") + 180 * 86_400 * 10**9)
    assert measured.summarise(pl.concat([old, new]))["middle"][0] == 1.0


def test_the_newest_results_are_kept_each_once() -> None:
    """Sixty-four of a hundred, and repeats do not push others out."""
    series = results({"a": [float(i) for i in range(100)]})
    kept = measured.add(pl.DataFrame(schema=measured.RESULTS), pl.concat([series, series]), keep=64)
    assert kept["value"].to_list() == [float(i) for i in range(36, 100)]
    assert measured.add(kept, series.tail(5), keep=64).equals(kept)


def test_three_gpus_cannot_say_what_is_typical() -> None:
    """Too few peers: no speed, rather than a speed of one."""
    summaries = measured.summarise(results({gpu: [1.0] for gpu in "abc"}))
    assert measured.estimates(summaries, GPUS)["mean"].to_list() == [None] * 3
    four = measured.summarise(results({"a": [1.0], "b": [1.0], "c": [1.0], "d": [0.9]}))
    assert measured.estimates(four, GPUS)["mean"].to_list() == pytest.approx([0, 0, 0, -0.1])


def test_a_restless_gpu_has_a_wide_interval_and_its_peers_do_not() -> None:
    """Run-to-run spread is pooled over the group, but nobody is called steadier than it is."""
    noisy = {"a": [0.0, 0.1, -0.1, 0.08], "b": [0.0, 0.001], "c": [0.0, 0.001], "d": [0.0, 0.001]}
    variance = measured.estimates(measured.summarise(results(noisy)), GPUS)["variance"].to_list()
    assert variance[0] > 50 * max(variance[1:])
