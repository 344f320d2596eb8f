"""Faults at their own level: nodes against nodes, GPUs against the same slot of other nodes.

To add a case: a made-up site, and what is slow in it.
"""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from analytics.levels import levels


def site(*, nodes: int = 20, slow_node: int | None = None, slow_gpu: tuple[int, int] | None = None) -> pl.DataFrame:
    """Log bandwidths of 8 GPUs a node, 0.2 % apart by chance, slots up to 1 % apart."""
    rng = np.random.default_rng(0)
    rows = [
        ("bw", f"n{n}", s, rng.normal(0, 0.002) - 0.01 * (s % 2) - 0.5 * (n == slow_node) - 0.1 * ((n, s) == slow_gpu))
        for n in range(nodes)
        for s in range(8)
    ]
    return pl.DataFrame(rows, schema=["name", "node", "slot", "value"], orient="row")


def slow(values: pl.DataFrame) -> list[tuple[str, str, int | None]]:
    return levels(values).filter("slow").select("level", "node", "slot").rows()


def test_a_healthy_site_has_nothing_slow() -> None:
    """Slots that differ by 1 % are no faults."""
    assert slow(site()) == []


def test_a_node_slow_on_all_its_gpus_is_one_slow_node_and_no_slow_gpu() -> None:
    """Inside it all GPUs look alike, and none is blamed."""
    assert slow(site(slow_node=4)) == [("node", "n4", None)]


def test_a_slow_gpu_is_itself_and_not_its_node() -> None:
    """Seven healthy neighbours keep their node out of it, also when it is slow itself."""
    assert slow(site(slow_gpu=(2, 5))) == [("gpu", "n2", 5)]
    assert slow(site(slow_node=2, slow_gpu=(2, 5))) == [("node", "n2", None), ("gpu", "n2", 5)]


def test_too_few_nodes_and_missing_values_judge_nobody() -> None:
    """Three nodes cannot say which is slow; a null is no measurement."""
    few = levels(site(nodes=3, slow_node=1)).filter(pl.col("level") == "node")
    assert few["z"].to_list() == [None] * 3
    assert not few["slow"].any()
    gone = site().with_columns(pl.when(pl.col("slot") == 0).then(None).otherwise("value").alias("value"))
    assert levels(gone).filter(pl.col("slot") == 0).is_empty()


@pytest.mark.parametrize(
    ("name", "level"), [("gemm_fp32_flops", "node"), ("membw_h2d_bw", "gpu"), ("membw_d2h_bw", "gpu")]
)
def test_azures_half_speed_parts_are_found_at_their_level_and_hardly_anything_else(
    shared_data: Path, name: str, level: str
) -> None:
    """FP32 is slow by whole nodes, host bandwidth by single GPUs; at most 1 % of the rest is called slow."""
    rows = pl.read_csv(shared_data / "azure_a100" / "benchmarks.csv", infer_schema_length=None)
    raw = rows.select("node", slot="gpu", raw=pl.col(name).cast(pl.Float64)).drop_nulls()
    keys = ["node"] if level == "node" else ["node", "slot"]
    half = raw.group_by(keys).agg(pl.col("raw").median()).filter(pl.col("raw") < 0.7 * raw["raw"].median())
    told = levels(raw.select(pl.lit(name).alias("name"), "node", "slot", pl.col("raw").log().alias("value")))
    told = told.filter(pl.col("level") == level)
    found = told.filter("slow")
    assert half.join(found, on=keys, how="anti").is_empty()
    assert len(half) > 0
    assert len(found.join(half, on=keys, how="anti")) <= 0.01 * (len(told) - len(half))
