"""The table of variance components: from results in a real store to shares by level.

To add a case: results of a fleet whose differences sit at one level, and what the table must say.
"""

from pathlib import Path

import numpy as np
import polars as pl
from support.store import measurements, scores, topology

from analytics.fleet_variance import NODE_ONLY, refresh_variance
from analytics.store import Store


def shares(store: Store) -> dict[str, float | None]:
    """Share by level, of the one contest there is."""
    assert refresh_variance(store) > 0
    return dict(store.table("variance").sort("position").select("level", "share").iter_rows())


def fill(store: Store, *, node_sd: float, gpu_sd: float, racks: bool = True) -> None:
    """Twenty nodes of four GPUs in five racks, three results each."""
    rng = np.random.default_rng(0)
    rows, told = [], []
    for node in range(20):
        shift = rng.normal(0, node_sd)
        for gpu in range(4):
            own = shift + rng.normal(0, gpu_sd)
            told.append({"gpu_uuid": f"g{node}-{gpu}", "node": f"n{node}", "peer_group": "A"})
            rows += [
                {
                    "subject": f"g{node}-{gpu}", "name": "sgemm", "time_ns": 10**18 + run, "node": None,
                    "value": 100 * float(np.exp(own + rng.normal(0, 0.002))), "higher_is_better": False,
                }
                for run in range(3)
            ]  # fmt: skip
    places = {f"n{i}": [("rack", f"r{i // 4}")] for i in range(20 if racks else 19)}
    store.write({"measurements": measurements(rows), "scores": scores(told), "topology": topology(places)})


def test_differences_between_gpus_are_the_gpus() -> None:
    """Most of the variance, with an interval that says so; the levels are in order, racks among them."""
    with Store(None) as store:
        fill(store, node_sd=0.0, gpu_sd=0.02)
        found = shares(store)
        assert list(found) == ["rack", "node", "gpu", "run"]
        assert (found["gpu"] or 0) > 0.8
        row = store.table("variance").row(by_predicate=pl.col("level") == "gpu", named=True)
        assert row["share_low"] > 0.5
        assert (row["nil"], row["note"], row["units"]) == (False, None, 80)


def test_where_only_nodes_differ_the_note_says_so() -> None:
    """As in step times of synchronous jobs."""
    with Store(None) as store:
        fill(store, node_sd=0.02, gpu_sd=0.0)
        assert (shares(store)["node"] or 0) > 0.8
        assert store.table("variance")["note"].unique().to_list() == [NODE_ONLY]


def test_a_level_that_some_nodes_have_no_place_at_is_left_out() -> None:
    """One node without a rack: no rack for anybody."""
    with Store(None) as store:
        fill(store, node_sd=0.01, gpu_sd=0.01, racks=False)
        assert list(shares(store)) == ["node", "gpu", "run"]


def test_again_it_is_the_same_and_contests_that_are_gone_leave() -> None:
    """The table is of now."""
    with Store(None) as store:
        fill(store, node_sd=0.01, gpu_sd=0.01)
        first = shares(store)
        assert shares(store) == first
        store.retain(before_ns={"measurements": 2 * 10**18})
        assert refresh_variance(store) == 0
        assert store.table("variance").is_empty()


def test_of_longhorn_nearly_all_is_the_gpus_own(shared_data: Path) -> None:
    """SGEMM on V100s: above nine tenths the GPU's, hardly any the run's."""
    runs = pl.read_csv(shared_data / "longhorn" / "sgemm.csv", infer_schema_length=None)
    rows = [
        {
            "subject": uuid, "name": "sgemm", "time_ns": ts * 10**9 + i, "value": perf, "higher_is_better": False,
            "node": f"{cabinet}-{node}",
        }
        for i, (uuid, ts, perf, cabinet, node) in enumerate(
            runs.filter(pl.col("node") >= 0).select("uuid", "ts", "perf", "cabinet", "node").sort("ts", "uuid").rows()
        )
    ]  # fmt: skip
    with Store(None) as store:
        store.write({"measurements": measurements(rows)})
        assert (shares(store)["gpu"] or 0) > 0.85
