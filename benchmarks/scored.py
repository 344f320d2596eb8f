"""A synthetic fleet's window rows, inventory, topology and scores: what scoring, ranking, store and API are timed on.

To change what a GPU looks like: `windows` for its telemetry; its scores follow from that by the scorer itself.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from analytics import scoring
from analytics.frames import frame, schema
from telemetry.tables import EVENTS, GPUS, MEASUREMENTS, NODES, TOPOLOGY, WINDOWS, Table

START_NS = 1_767_225_600 * 10**9
WINDOW_NS = 60 * 10**9
_ABSENT = 0.001  # share of GPUs whose row is missing in a window
_SLOW, _SLOW_BY = 0.003, 0.08  # share of GPUs, and by how much their clock is lower


def uuids(gpus: int) -> pl.Series:
    """The names of so many GPUs, 8 a node: in no order, as real ones are."""
    parts = ((i * 2_654_435_761 + 12_345) % 2**32 for i in range(gpus))
    return pl.Series("gpu_uuid", [f"GPU-{part:08x}-7a5b-4c1d-9e2f-{i:012x}" for i, part in enumerate(parts)])


def windows(gpus: int, *, at: int, names: pl.Series | None = None) -> pl.DataFrame:
    """Rows of WINDOWS of a busy fleet for the window number `at`: the same GPUs are slow in every one, some absent."""
    rng = np.random.default_rng(at)
    slow = np.random.default_rng(-1 % 2**32).random(gpus) < _SLOW
    clock = rng.normal(1_755, 6, gpus) * np.where(slow, 1 - _SLOW_BY, 1.0)
    known: dict[str, Any] = {
        "gpu_uuid": uuids(gpus) if names is None else names,
        "window_start_ns": np.full(gpus, START_NS + at * WINDOW_NS),
        "window_s": 60.0,
        "node": _nodes(gpus),
        "samples": 60,
        "completeness_ratio": 1.0,
        "busy_samples": rng.integers(55, 61, gpus),
        "busy_ratio": rng.uniform(0.9, 1.0, gpus),
        "workload_class": "compute",
        "effective_clock_mhz": clock,
        "clock_min_mhz": clock - rng.uniform(5, 40, gpus),
        "memory_clock_mhz": 2_619.0,
        "power_w": rng.normal(660, 12, gpus),
        "power_max_w": rng.uniform(690, 705, gpus),
        "power_limit_w": 700.0,
        "temperature_c": rng.normal(61, 4, gpus),
        "temperature_max_c": rng.normal(66, 4, gpus).round(),
        "memory_temperature_max_c": rng.normal(78, 5, gpus).round(),
        "utilization_ratio": rng.uniform(0.97, 1.0, gpus),
        "sm_active_ratio": rng.uniform(0.8, 0.95, gpus),
        "tensor_active_ratio": rng.uniform(0.5, 0.6, gpus),
        "dram_active_ratio": rng.uniform(0.3, 0.4, gpus),
        "fp_active_ratio": rng.uniform(0.05, 0.1, gpus),
        "nvlink_bytes_per_s": rng.uniform(1e11, 2e11, gpus),
        "sw_power_cap_ratio": rng.uniform(0.8, 1.0, gpus),
        "power_throttle_s": rng.uniform(45, 60, gpus),
        "energy_j": rng.normal(39_600, 700, gpus),
        "pcie_link_gen": 5.0,
        "pcie_link_width": 16.0,
        "distinct_readings": rng.integers(40, 61, gpus),
        "delivery_delay_s": rng.uniform(0.0, 1.0, gpus),
        **dict.fromkeys(
            (
                "hw_slowdown_ratio", "sw_thermal_ratio", "hw_thermal_ratio", "power_brake_ratio", "thermal_throttle_s",
                "brake_throttle_s", "ecc_corrected", "ecc_uncorrected", "remapped_rows", "pcie_replays",
                "nvlink_errors", "counter_resets", "recovery_action", "rejected_values", "application_clocks_ratio",
            ),
            0,
        ),
        "row_remap_pending": False,
        "row_remap_failed": False,
    }  # fmt: skip
    return _frame(WINDOWS, gpus, known).filter(pl.Series(rng.random(gpus) >= _ABSENT))


def gpus_table(gpus: int, *, names: pl.Series | None = None) -> pl.DataFrame:
    """Rows of GPUS: one model throughout."""
    known = {
        "gpu_uuid": uuids(gpus) if names is None else names,
        "node": _nodes(gpus),
        "slot": np.arange(gpus) % 8,
        "model": "NVIDIA H100 80GB HBM3",
        "memory_total_bytes": 80 * 2**30,
        "power_limit_w": 700.0,
        "mig_enabled": False,
        "seen_ns": START_NS,
    }
    return _frame(GPUS, gpus, known)


def nodes_table(gpus: int) -> pl.DataFrame:
    """Rows of NODES: each has its 8 GPUs."""
    count = gpus // 8
    known = {
        "node": [f"n{i:06d}" for i in range(count)],
        "expected_gpus": 8,
        "seen_gpus": 8,
        "place": "[]",
        "seen_ns": START_NS,
    }
    return _frame(NODES, count, known)


def topology(gpus: int) -> pl.DataFrame:
    """Rows of TOPOLOGY: racks of 4 nodes, blocks of 32 racks, one site."""
    count = gpus // 8
    node = [f"n{i:06d}" for i in range(count)]
    levels = (
        ("rack", [f"r{i // 4:06d}" for i in range(count)]),
        ("block", [f"b{i // 128:05d}" for i in range(count)]),
        ("site", ["north"] * count),
    )
    parts = [
        _frame(TOPOLOGY, count, {"node": node, "position": position, "level": level, "value": value, "source": "file"})
        for position, (level, value) in enumerate(levels)
    ]
    return pl.concat(parts)


def step(
    state: scoring.State, closed: pl.DataFrame, inventory: tuple[pl.DataFrame, pl.DataFrame], *, at: int
) -> tuple[scoring.State, scoring.Scored]:
    """The scorer's step for the window number `at`."""
    start = START_NS + at * WINDOW_NS
    return scoring.apply(
        state,
        windows=closed,
        window_start_ns=start,
        events=frame(EVENTS),
        measurements=frame(MEASUREMENTS),
        gpus=inventory[0],
        nodes=inventory[1],
        as_of_ns=start + WINDOW_NS,
    )


def scores(gpus: int, *, count: int = 3) -> pl.DataFrame:
    """The newest row of SCORES of every GPU after some windows."""
    names = uuids(gpus)
    inventory = gpus_table(gpus, names=names), nodes_table(gpus)
    state, found = scoring.empty(), []
    for at in range(count):
        state, scored = step(state, windows(gpus, at=at, names=names), inventory, at=at)
        found.append(scored.scores)
    return pl.concat(found).unique("gpu_uuid", keep="last").sort("gpu_uuid")


def _nodes(gpus: int) -> pl.Series:
    return pl.Series("node", [f"n{i:06d}" for i in range(-(-gpus // 8))]).gather(np.arange(gpus) // 8)


def _frame(table: Table, rows: int, known: Mapping[str, Any]) -> pl.DataFrame:
    """All columns of the table: scalars repeated, what is not known null."""
    columns = []
    for name, kind in schema(table).items():
        value = known.get(name)
        if value is None or isinstance(value, str | int | float):
            columns.append(pl.repeat(value, rows, dtype=kind, eager=True).alias(name))
        else:
            columns.append(pl.Series(name, value).cast(kind))
    return pl.DataFrame(columns)
