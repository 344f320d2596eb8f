"""Odd combinations: who is odd, who is only at other work, and how quiet a healthy fleet is.

To add a case: a made-up fleet, and who of it is odd.
"""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scorer import Scorer, fleet

from analytics.covariance import fit
from analytics.frames import frame
from analytics.oddity import odd_combinations
from telemetry.tables import WINDOWS

NODES, SLOTS = 20, 8


def healthy(seed: int = 0, *, nodes: int = NODES, tails: float = 30.0) -> list[dict[str, Any]]:
    """A busy fleet: jobs by node, slots 14 C apart, power that follows load, temperatures that follow power."""
    rng = np.random.default_rng(seed)
    rows = []
    for node in range(nodes):
        load, air = rng.uniform(0.55, 0.70), rng.normal(0, 2)
        for slot in range(SLOTS):
            active = load + rng.normal(0, 0.005)
            power = 640 + 150 * (active - 0.6) + 8 * rng.standard_t(tails)
            heat = 45 + air + 0.03 * power + 14 * (slot % 2) + 1.5 * rng.standard_t(tails)
            rows.append(
                {
                    "gpu_uuid": f"g{node}-{slot}", "node": f"n{node}", "slot": slot, "window_start_ns": 0,
                    "workload_class": "compute", "effective_clock_mhz": 1500 * (1 + 0.004 * rng.standard_t(tails)),
                    "power_w": power, "temperature_c": heat, "utilization_ratio": 1.0,
                    "memory_temperature_max_c": heat + 14 + rng.normal(0, 1), "tensor_active_ratio": active,
                    "sm_active_ratio": 0.9 + rng.normal(0, 0.003),
                }
            )  # fmt: skip
    return rows


def odd(rows: list[dict[str, Any]], **columns: Any) -> dict[str, str]:
    """The odd GPUs with the words about them."""
    known = frame(WINDOWS, rows).with_columns(
        pl.Series("slot", [row["slot"] for row in rows], dtype=pl.UInt16),
        pl.lit("H100").alias("peer_group"),
        pl.lit(value=True).alias("eligible"),
        **columns,
    )
    found = known.hstack(odd_combinations(known)).filter("odd_combination")
    return dict(found.select("gpu_uuid", "odd_combination_text").iter_rows())


def change(rows: list[dict[str, Any]], gpu: str, **by: float) -> list[dict[str, Any]]:
    """The rows with some readings of one GPU multiplied."""
    return [
        row | ({name: row[name] * factor for name, factor in by.items()} if row["gpu_uuid"] == gpu else {})
        for row in rows
    ]


@pytest.mark.parametrize("tails", [30.0, 4.0])
def test_a_healthy_fleet_is_quiet_whatever_its_tails(tails: float) -> None:
    """Sixty windows of 160 GPUs: at most one GPU odd in one of them, where one in a hundred windows is granted."""
    assert sum(len(odd(healthy(seed, tails=tails))) for seed in range(60)) <= 1


@pytest.mark.parametrize(
    ("by", "words"),
    [
        ({"memory_temperature_max_c": 1.3}, "memory temperature"),
        ({"power_w": 0.8}, "power"),
        ({"power_w": 1.2}, "power"),
    ],
)
def test_readings_that_do_not_go_together_are_named(by: dict[str, float], words: str) -> None:
    """Each of them alone lies within what the fleet shows: memory in a hot slot is as warm, a light load draws less."""
    found = odd(change(healthy(), "g3-2", **by))
    assert list(found) == ["g3-2"]
    assert words in found["g3-2"]


def test_a_slow_clock_or_a_cool_gpu_is_not_odd() -> None:
    """The one is a matter of speed, the other of nobody."""
    assert odd(change(healthy(), "g3-2", effective_clock_mhz=0.9)) == {}
    assert odd(change(healthy(), "g3-2", temperature_c=0.7, memory_temperature_max_c=0.8)) == {}


def test_a_node_at_other_work_or_in_warmer_air_is_not_odd() -> None:
    """What all GPUs of a node share is its job's, or its air's."""
    rows = [
        row
        | ({"power_w": row["power_w"] * 0.8, "temperature_c": row["temperature_c"] + 9} if row["node"] == "n4" else {})
        for row in healthy()
    ]
    assert odd(rows) == {}


def test_a_reading_that_a_tenth_lacks_is_left_out_and_never_taken_for_zero() -> None:
    """Neither the GPUs without it are odd, nor is anybody lost who is."""
    rows = change(healthy(), "g3-2", power_w=0.8)
    rows = [row | ({"sm_active_ratio": None} if i % 10 == 0 else {}) for i, row in enumerate(rows)]
    assert list(odd(rows)) == ["g3-2"]
    assert list(odd(rows, dram_active_ratio=pl.lit(None, dtype=pl.Float32))) == ["g3-2"]


def test_too_few_peers_say_nothing() -> None:
    """Three nodes are no sample of anything."""
    rows = change(healthy(nodes=3), "g1-1", power_w=0.5)
    assert odd(rows) == {}
    assert odd_combinations(frame(WINDOWS, []).with_columns(slot=None, peer_group=None, eligible=False)).is_empty()


@settings(max_examples=10, deadline=None)
@given(st.randoms(use_true_random=False), st.floats(0.5, 2.0))
def test_order_names_and_units_do_not_matter(chance: Any, unit: float) -> None:
    """The same GPU is odd, by the same words."""
    rows = change(healthy(), "g3-2", power_w=0.8)
    plain = odd(rows)
    rows = [row | {"power_w": row["power_w"] * unit, "node": "x" + row["node"][::-1]} for row in rows]
    chance.shuffle(rows)
    assert odd(rows) == plain


def test_one_wild_gpu_moves_nobody_else() -> None:
    """What is said of the others stays."""
    rows = change(healthy(), "g3-2", power_w=0.8)
    wild = change(rows, "g7-1", power_w=0.01, temperature_c=3.0)
    assert set(odd(wild)) == {"g3-2", "g7-1"}


def test_equal_rows_are_at_no_distance() -> None:
    """No scatter is no evidence of infinite distance."""
    model = fit(np.ones((50, 4)), loads=2, floors=np.full(4, 0.01))
    assert model.distances(model.residuals(np.ones((3, 4)))).tolist() == pytest.approx([0.0] * 3)


def test_it_takes_three_windows_of_five_demotes_nobody_and_survives_a_restart() -> None:
    """The words come back as they were."""
    found = []
    for restart in (False, True):
        scorer = Scorer(fleet(NODES))
        for at in range(5):
            busy = {"samples": 60, "busy_samples": 60, "busy_ratio": 1.0, "completeness_ratio": 1.0}
            rows = change(healthy(at), "g3-2", memory_temperature_max_c=1.3)
            scorer.window(
                [{k: v for k, v in row.items() if k not in ("slot", "window_start_ns")} | busy for row in rows], at=at
            )
            assert ("odd_combination" in scorer.codes("g3-2")) == (at >= 2)
            if restart:
                scorer.restart()
        row = scorer.row("g3-2")
        assert row["tier"] == "standard"
        assert "memory temperature" in next(r["text"] for r in row["reasons"] if r["code"] == "odd_combination")
        others = [gpu for gpu in scorer.gpus["gpu_uuid"] if "odd_combination" in scorer.codes(gpu)]
        assert others == ["g3-2"]
        found.append(scorer.scores)
    assert found[0].equals(found[1])


def test_of_longhorn_only_the_gpu_that_skips_cycles_is_odd(shared_data: Path) -> None:
    """Heavy tails of 194 real V100s: one is 5 % slow at a normal clock, hot and below the cap; the rest are quiet."""
    runs = pl.read_csv(shared_data / "longhorn" / "sgemm.csv", infer_schema_length=None)
    gpus = runs.group_by("uuid").agg(pl.col("freq", "temp", "pwr", "perf").median()).sort("uuid")
    rows = [
        {
            "gpu_uuid": uuid, "node": uuid, "slot": None, "window_start_ns": 0, "workload_class": "compute",
            "effective_clock_mhz": freq, "power_w": pwr, "temperature_c": temp, "utilization_ratio": 1.0,
        }
        for uuid, freq, temp, pwr, _ in gpus.iter_rows()
    ]  # fmt: skip
    beyond = (gpus["perf"].log() + 0.976 * gpus["freq"].log()).to_numpy()
    assert list(odd(rows)) == [gpus["uuid"][int(np.argmax(beyond))]]
