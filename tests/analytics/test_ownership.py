"""Whose a difference is: results of GPUs that say nothing but their node's.

To add a case: a made-up fleet of results, and who is judged by them.
"""

import numpy as np
import polars as pl
from support.samples import START_NS
from support.scorer import Scorer, fleet

from analytics.ownership import node_only

NODES, GPUS, RUNS = 12, 4, 5


def gpus(*, node: float, gpu: float, run: float, outlier: float = 0.0) -> pl.DataFrame:
    """Summaries of 48 GPUs in 12 nodes with 5 runs each."""
    rng = np.random.default_rng(7)
    rows = []
    for n in range(NODES):
        of_node = rng.normal(0, node)
        for g in range(GPUS):
            runs = of_node + rng.normal(0, gpu) + rng.normal(0, run, RUNS) - outlier * (n == g == 0)
            rows.append((f"n{n}", "x", float(np.median(runs)), float(RUNS), float(runs.var(ddof=1))))
    return pl.DataFrame(rows, schema=["node", "name", "middle", "weight", "run_variance"], orient="row")


def test_differences_between_nodes_alone_belong_to_the_nodes() -> None:
    """GPUs of one node differ no more than their runs: the group is named."""
    assert node_only(gpus(node=0.03, gpu=0.0, run=0.01), by=["name"])["name"].to_list() == ["x"]


def test_gpus_that_differ_and_fleets_all_alike_keep_their_own_numbers() -> None:
    """A GPU effect as large as the run's; nodes that do not differ; too few nodes to tell."""
    assert node_only(gpus(node=0.03, gpu=0.01, run=0.01), by=["name"]).is_empty()
    assert node_only(gpus(node=0.0, gpu=0.0, run=0.01), by=["name"]).is_empty()
    assert node_only(gpus(node=0.03, gpu=0.0, run=0.01).head(20), by=["name"]).is_empty()


def test_one_gpu_that_stands_out_is_not_hidden_in_its_node() -> None:
    """One of forty-eight is 10 % slow: it is its own fault."""
    assert node_only(gpus(node=0.03, gpu=0.0, run=0.01, outlier=0.1), by=["name"]).is_empty()


def test_step_times_told_per_gpu_judge_the_node_and_never_one_gpu() -> None:
    """Four GPUs of a slow node share its speed and `node_slow`; no GPU anywhere is called slow by itself."""
    rng = np.random.default_rng(9)
    scorer = Scorer(fleet(NODES, GPUS))
    for run in range(6):
        pace = {n: 100.0 * np.exp(0.10 * (n == 3) + 0.01 * (n % 4) + rng.normal(0, 0.006)) for n in range(NODES)}
        scorer.measurements(
            *(
                {"subject": f"g{n}-{s}", "value": pace[n] * np.exp(rng.normal(0, 0.001)), "time_ns": START_NS + run}
                for n in range(NODES)
                for s in range(GPUS)
            )
        )
    slow = [scorer.row(f"g3-{s}") for s in range(GPUS)]
    assert {row["speeds"]["compute"]["source"] for row in slow} == {"node"}
    assert {reason["code"] for row in slow for reason in row["reasons"]} == {"node_slow"}
    assert len({row["speed"] for row in slow}) == 1
    others = scorer.scores.filter(pl.col("node") != "n3")
    assert not others["tier"].is_in(["degraded", "quarantine"]).any()
