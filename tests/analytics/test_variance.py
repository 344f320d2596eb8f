"""Shares of variance: recovered where they are known, nil where there is nothing, told apart from what cannot be.

To add a case: a made-up fleet with known standard deviations, or a real profile.
"""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from analytics.variance import SCHEMA, by_contest, components


def fleet(*, node: float, gpu: float, run: float, nodes: int = 60, seed: int = 1) -> pl.DataFrame:
    """Log values of 4 GPUs a node with 2 to 9 runs each; spreads in per cent, the same GPU names in every node."""
    rng = np.random.default_rng(seed)
    rows = [
        (f"n{n}", f"g{g}", (node * of_node + gpu * of_gpu + run * rng.normal()) / 100)
        for n in range(nodes)
        for of_node in [rng.normal()]
        for g in range(4)
        for of_gpu in [rng.normal()]
        for _ in range(int(rng.integers(2, 10)))
    ]
    return pl.DataFrame(rows, schema=["node", "gpu", "value"], orient="row")


def shares(values: pl.DataFrame, levels: tuple[str, ...] = ("node", "gpu")) -> dict[str, float]:
    return {row["level"]: row["share"] for row in components(values, levels=levels).iter_rows(named=True)}


def test_known_shares_of_unbalanced_fleets_are_recovered_and_lie_in_their_intervals() -> None:
    """Node 1 %, GPU 2 %, run 1 %: shares of a sixth, four sixths, a sixth; nine intervals of ten hold them."""
    true, held = (1 / 6, 4 / 6, 1 / 6), 0
    for seed in range(6):
        found = components(fleet(node=1, gpu=2, run=1, seed=seed), levels=["node", "gpu"])
        assert found["share"].to_list() == pytest.approx(true, abs=0.13)
        assert found["share"].sum() == pytest.approx(1)
        held += sum(row["share_low"] <= t <= row["share_high"] for row, t in zip(found.to_dicts(), true, strict=True))
    assert held >= 14


@pytest.mark.parametrize("seed", range(4))
def test_a_level_without_differences_of_its_own_is_nil_or_next_to_it(seed: int) -> None:
    """Synchronous jobs: all that a GPU's number says is its node's and the run's."""
    found = shares(fleet(node=2, gpu=0, run=2, seed=seed))
    assert found["gpu"] < 0.05
    assert found["node"] == pytest.approx(0.5, abs=0.15)


def test_shares_follow_neither_order_nor_names_nor_units() -> None:
    """Reversed, renamed, and in another unit (a constant in logs): the same shares."""
    plain = fleet(node=1, gpu=1, run=1)
    other = plain.reverse().with_columns(pl.col("node") + "x", pl.col("value") + 7.0)
    assert list(shares(other).values()) == pytest.approx(list(shares(plain).values()), abs=1e-6)


def test_what_cannot_be_told_apart_is_null_and_nothing_is_nothing() -> None:
    """One site has no spread; one GPU in each node is the node; a single run has no run-to-run spread."""
    rows = fleet(node=1, gpu=1, run=1).with_columns(site=pl.lit("s"))
    found = components(rows, levels=["site", "node", "gpu"])
    assert found.row(0, named=True)["share"] is None
    assert found["share"].drop_nulls().sum() == pytest.approx(1)
    single = rows.unique(["node"], keep="first", maintain_order=True)
    told = components(single, levels=["node", "gpu"]).rows_by_key("level", named=True, unique=True)
    assert told["run"]["share"] is None
    assert components(rows.clear(), levels=["node", "gpu"]).schema == pl.Schema(SCHEMA)
    flat = components(rows.with_columns(value=pl.lit(1.0)), levels=["node", "gpu"])
    assert flat["share"].to_list() == [0, 0, 0]
    assert flat["nil"].all()


def test_each_class_has_shares_of_its_own() -> None:
    """What is the GPU's in one class may be the node's in another."""
    both = pl.concat(
        [
            fleet(node=0, gpu=2, run=1).with_columns(workload_class=pl.lit("compute")),
            fleet(node=2, gpu=0, run=1).with_columns(workload_class=pl.lit("memory")),
        ]
    )
    found = by_contest(both, by=["workload_class"], levels=["node", "gpu"])
    assert found["workload_class"].to_list() == ["compute"] * 3 + ["memory"] * 3
    largest = found.sort("share", descending=True).unique("workload_class", keep="first", maintain_order=True)
    assert dict(largest.select("workload_class", "level").iter_rows()) == {"compute": "gpu", "memory": "node"}


@pytest.mark.parametrize(("profile", "node"), [("bert-longhorn", 0.18), ("frontera-resnet", 0.83)])
def test_step_times_of_synchronous_jobs_are_the_nodes_and_never_the_gpus(
    shared_data: Path, profile: str, node: float
) -> None:
    """The GPU's share is nil, in profiles of two clusters with two kinds of GPU."""
    rows = pl.read_csv(shared_data / "pal" / f"{profile}-agg.csv", infer_schema_length=None).select(
        pl.format("{}-{}", "cabinet", "node").alias("node"), gpu="device", value=pl.col("perf").cast(pl.Float64).log()
    )
    found = shares(rows)
    assert found["gpu"] == 0
    assert found["node"] == pytest.approx(node, abs=0.05)
