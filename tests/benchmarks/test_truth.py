"""The truth table: figures of the sets named, nothing of the others, targets judged as printed.

To add a set's test: a small file of its kind, or a real one through `shared_data`, and its figures.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from benchmarks.truth import __main__ as truth
from benchmarks.truth import longhorn
from benchmarks.truth.draws import coverage, overlap, ranking, spearman
from benchmarks.truth.figure import Figure, table


def told(arguments: list[str], out: Path) -> dict[str, dict[str, Any]]:
    """Figures of one call, by name."""
    assert truth.main([*arguments, "--json", str(out)]) == 0
    rows = json.loads(out.read_text())
    assert all(set(row) == {"set", "figure", "value", "target", "holds", "n"} for row in rows)
    return {row["figure"]: row for row in rows}


def gemm_file(path: Path, *, slow_kind: float = 0.0, gpus: int = 20, runs: int = 14) -> Path:
    """Repeated times of GPUs, two a node, 2 % apart and 0.3 % restless; half of the nodes another kind."""
    rng = np.random.default_rng(0)
    rows = [
        (f"n{g // 2}", g % 2, 100 * np.exp(own + slow_kind * (g >= gpus // 2) + rng.normal(0, 0.003)))
        for g in range(gpus)
        for own in [rng.normal(0, 0.02)]
        for _ in range(runs)
    ]
    pl.DataFrame(rows, schema=["Node", "GPU", "Time"], orient="row").write_csv(path)
    return path


def test_any_file_of_repeated_times_is_grouped_ranked_and_covered(tmp_path: Path) -> None:
    """One kind of 20 GPUs, next to nothing of the variance the run's, one run ranks them well."""
    found = told(["--gemm", str(gemm_file(tmp_path / "one.csv"))], tmp_path / "out.json")
    assert found["groups found, GPUs in each (fastest first)"]["value"] == "20"
    assert found["run's share of variance in a group"]["value"] < 0.1
    assert found["rank of 1 run against the others, Spearman"]["value"] > 0.9
    assert 0.8 <= found["90 % interval from 3 runs holds the later median"]["value"] <= 1


def test_ranks_of_one_job_are_not_taken_for_runs(tmp_path: Path) -> None:
    """Four ranks that share their job's time: the job's is all of the variance, the node's nothing."""
    rng = np.random.default_rng(0)
    jobs = [(node, job, rng.normal(0, 0.05)) for node in range(30) for job in range(4)]
    rows = [
        ("c1", node, gpu, job, 100 * np.exp(own + rng.normal(0, 0.001))) for node, job, own in jobs for gpu in "abcd"
    ]
    path = tmp_path / "mine-agg.csv"
    pl.DataFrame(rows, schema=["cabinet", "node", "device", "ts", "perf"], orient="row").write_csv(path)
    found = told(["--pal", str(path)], tmp_path / "out.json")
    assert found["mine: GPU's share of variance"]["value"] == 0
    assert found["mine: job's share with jobs as a level"]["value"] > 0.9


@pytest.mark.parametrize("rows", [40, 400])
def test_a_smaller_longhorn_of_other_gpus_is_told_as_far_as_it_goes(tmp_path: Path, rows: int) -> None:
    """A few GPUs with a few runs: figures that need more are left out, nothing breaks."""
    rng = np.random.default_rng(1)
    own = rng.normal(0, 0.016, 20)
    names = ("uuid", "cabinet", "node", "dev_id", "ts", "perf", "freq", "memfreq", "temp", "pwr")
    data = [
        (
            *(f"other-{g}", "c0", g // 4, g % 4, 1_600_000_000 + i, 40 * np.exp(own[g] + rng.normal(0, 0.002))),
            *(round(1360 * np.exp(-own[g]) / 7.5) * 7.5, 877, 60 + g % 5, 297.0 + rng.normal(0, 0.3)),
        )
        for i in range(rows)
        for g in [i % 20]
    ]
    path = tmp_path / "runs.csv"
    pl.DataFrame(data, schema=list(names), orient="row").write_csv(path)
    found = told(["--longhorn", str(path)], tmp_path / "out.json")
    assert ("telemetry of 10 runs: slowest-decile overlap" in found) == (rows == 400)


def test_two_kinds_under_one_name_are_told_with_their_sizes(tmp_path: Path) -> None:
    """Ten GPUs 40 % slower than the other ten."""
    found = told(["--gemm", str(gemm_file(tmp_path / "two.csv", slow_kind=0.4))], tmp_path / "out.json")
    assert found["groups found, GPUs in each (fastest first)"]["value"] == "10 + 10"
    assert found["run's share of variance in a group"]["value"] < 0.1


def test_a_file_without_its_columns_is_refused_with_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is missing is named."""
    path = tmp_path / "bad.csv"
    path.write_text("node,GPU,Time\nn,0,1\n")
    assert truth.main(["--gemm", str(path)]) == 1
    assert "lacks the columns ['Node']" in capsys.readouterr().err


def test_a_target_is_judged_by_the_value_as_printed() -> None:
    """0.8396 prints as 0.840 and holds against 0.84; no target, no judgement; nothing measured does not hold."""
    figure = Figure(set="s", figure="f", value=np.float64(0.8396), n=1, low=0.84)
    assert figure.holds is True
    assert json.loads(json.dumps(figure.row()))["target"] == ">= 0.84"
    assert Figure(set="s", figure="f", value=0.8394, n=1, low=0.84).holds is False
    assert Figure(set="s", figure="f", value=0.9, n=1).holds is None
    assert Figure(set="s", figure="f", value=None, n=0, high=1.0).holds is False
    assert Figure(set="s", figure="f", value=0.93, n=1, low=0.88, high=0.92).holds is False
    assert "NO" in table([Figure(set="s", figure="f", value=0.1, n=1, low=0.84).row()])


def test_ties_count_in_proportion_and_order_of_rows_does_not_matter() -> None:
    """A predictor that says the same of everybody finds a tenth of the slowest tenth."""
    true = np.arange(100.0)
    assert overlap(np.zeros(100), true) == pytest.approx(0.1)
    assert overlap(true, true) == 1
    assert spearman(true, -true) == pytest.approx(-1)


@pytest.mark.parametrize("kind", ["longhorn", "azure", "bytedance", "pal", "pal-traces"])
def test_a_file_of_another_kind_is_named_and_the_others_are_told(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, and the exit status says so."""
    good, bad = gemm_file(tmp_path / "one.csv", gpus=12, runs=5), tmp_path / "bad.csv"
    bad.write_text("name,speed\nx,1\n")
    assert truth.main(["--gemm", str(good), f"--{kind}", str(bad), "--json", str(tmp_path / "out.json")]) == 1
    told = capsys.readouterr()
    assert "cannot be read: " in told.err
    assert "Traceback" not in told.err
    assert {row["set"] for row in json.loads((tmp_path / "out.json").read_text())} == {"one"}


def test_telemetry_alone_is_never_below_the_clock_alone_on_longhorn(shared_data: Path) -> None:
    """One run of each V100: Spearman above 0.97 with the time of its other runs; the clock does no better."""
    known = longhorn.runs(shared_data / "longhorn" / "sgemm.csv")
    predictors: dict[str, Any] = {
        "clock": lambda drawn: drawn.group_by("gpu_uuid").agg(pl.col("clock_mhz").log().mean().alias("log_speed")),
        "telemetry": longhorn.telemetry_speed,
    }
    found, gpus = ranking(known, predictors, count=1, draws=8)
    assert gpus > 150
    assert found["telemetry"][0] > max(found["clock"][0], 0.969)
    assert found["telemetry"][1] >= found["clock"][1]


@pytest.mark.parametrize("count", [1, 3, 10])
def test_intervals_from_a_few_runs_hold_the_later_median_of_longhorns_gpus(shared_data: Path, count: int) -> None:
    """Nine of ten, by measurement."""
    known = longhorn.runs(shared_data / "longhorn" / "sgemm.csv")
    hit, width, pairs = coverage(known, count=count, draws=8, seed=1)
    assert pairs > 300
    assert hit is not None
    assert 0.86 <= hit <= 0.94
    assert width is not None
    assert width < 0.01
