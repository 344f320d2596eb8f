"""Synthetic samples and windows for tests of analytics: plausible shapes, invented values.

To add a scenario: a function here that returns a frame with the columns of `frames.sample_schema` or of WINDOWS.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from analytics.frames import frame, sample_schema
from telemetry.tables import GPUS, WINDOWS

WINDOW_NS = 60 * 10**9
START_NS = 1_767_225_600 * 10**9  #: a multiple of the window


def samples(columns: Mapping[str, Any], *, typed: bool = True) -> pl.DataFrame:
    """A samples frame from some columns; the rest is null, carry false, interval 1 s."""
    known = sample_schema()
    rows = len(columns["gpu_uuid"])
    defaults = {"node": "n0", "interval_s": 1.0, "rejected_values": 0, "carry": False}
    data = {name: columns.get(name, [defaults.get(name)] * rows) for name in known}
    return pl.DataFrame(data, schema=known, strict=False) if typed else pl.DataFrame(data)


def one_gpu(*, seconds: int = 60, gpu: str = "GPU-a", carry: bool = False, **columns: Any) -> pl.DataFrame:
    """Samples of one GPU each second of the first window; scalars are repeated. With `carry` one row before it."""
    rows = seconds + carry
    first = START_NS - carry * 10**9
    data = {name: value if isinstance(value, list | np.ndarray) else [value] * rows for name, value in columns.items()}
    return samples(
        {
            "gpu_uuid": [gpu] * rows,
            "time_ns": [first + i * 10**9 for i in range(rows)],
            "carry": [carry and i == 0 for i in range(rows)],
            **data,
        }
    )


def fleet_samples(*, gpus: int, seconds: int = 60, seed: int = 0) -> pl.DataFrame:
    """A busy fleet at 1 Hz with the metrics of a data-centre agent, one carry row each."""
    rng = np.random.default_rng(seed)
    rows = gpus * (seconds + 1)
    second = np.tile(np.arange(-1, seconds), gpus)
    uuids = pl.Series("gpu_uuid", [f"GPU-{i:08x}-0000-0000-0000-{i:012x}" for i in range(gpus)])
    index = np.repeat(np.arange(gpus), seconds + 1)
    counter = (np.arange(rows) * 700).astype(np.uint64)
    known = {
        "gpu_uuid": uuids.gather(index),
        "node": pl.Series([f"n{i // 8:05d}" for i in range(gpus)]).gather(index),
        "time_ns": START_NS + second.astype(np.int64) * 10**9,
        "interval_s": np.ones(rows, dtype=np.float32),
        "rejected_values": np.zeros(rows, dtype=np.uint16),
        "carry": second < 0,
        "sm_clock_mhz": (1755 + 15 * rng.integers(-4, 4, rows)).astype(np.uint16),
        "memory_clock_mhz": np.full(rows, 2619, dtype=np.uint16),
        "temperature_c": rng.integers(55, 75, rows).astype(np.int16),
        "memory_temperature_c": rng.integers(60, 90, rows).astype(np.int16),
        "power_w": rng.normal(650, 20, rows).astype(np.float32),
        "power_limit_w": np.full(rows, 700, dtype=np.float32),
        "utilization_ratio": np.ones(rows, dtype=np.float32),
        "clock_event_reasons": np.where(rng.random(rows) < 0.5, 4, 0).astype(np.uint64),
        "energy_mj": counter,
        "sw_power_cap_ns": counter,
        "sw_thermal_ns": np.zeros(rows, dtype=np.uint64),
        "hw_thermal_ns": np.zeros(rows, dtype=np.uint64),
        "hw_power_brake_ns": np.zeros(rows, dtype=np.uint64),
        "ecc_corrected_total": np.zeros(rows, dtype=np.uint64),
        "ecc_uncorrected_total": np.zeros(rows, dtype=np.uint64),
        "pcie_replay_total": np.full(rows, 120, dtype=np.uint32),
        "pcie_link_gen": np.full(rows, 5, dtype=np.uint8),
        "pcie_link_width": np.full(rows, 16, dtype=np.uint8),
        "row_remap_pending": np.zeros(rows, dtype=np.uint8),
        "graphics_engine_active_ratio": rng.uniform(0.9, 1, rows).astype(np.float32),
        "sm_active_ratio": rng.uniform(0.8, 1, rows).astype(np.float32),
        "tensor_active_ratio": rng.uniform(0.5, 0.6, rows).astype(np.float32),
        "dram_active_ratio": rng.uniform(0.3, 0.4, rows).astype(np.float32),
        "nvlink_tx_bytes_per_s": rng.uniform(1e10, 2e10, rows).astype(np.float32),
        "nvlink_rx_bytes_per_s": rng.uniform(1e10, 2e10, rows).astype(np.float32),
    }
    return pl.DataFrame(
        {
            name: known[name] if name in known else pl.repeat(None, rows, dtype=kind, eager=True)
            for name, kind in sample_schema().items()
        },
        schema=sample_schema(),
    )


def windows(rows: Sequence[Mapping[str, Any]], *, at: int = 0) -> pl.DataFrame:
    """Rows of WINDOWS for the window number `at`: a GPU busy with compute at the cap, changed by each row's values."""
    normal: dict[str, Any] = {
        "window_start_ns": START_NS + at * WINDOW_NS, "window_s": 60.0, "node": "n0", "samples": 60,
        "completeness_ratio": 1.0, "busy_samples": 60, "busy_ratio": 1.0, "workload_class": "compute",
        "effective_clock_mhz": 1400.0, "clock_min_mhz": 1380.0, "memory_clock_mhz": 2619.0, "power_w": 690.0,
        "power_max_w": 700.0, "power_limit_w": 700.0, "temperature_c": 60.0, "utilization_ratio": 1.0,
        "tensor_active_ratio": 0.6, "sm_active_ratio": 0.9, "sw_power_cap_ratio": 0.9, "hw_slowdown_ratio": 0.0,
        "sw_thermal_ratio": 0.0, "hw_thermal_ratio": 0.0, "power_brake_ratio": 0.0, "ecc_corrected": 0.0,
        "ecc_uncorrected": 0.0, "row_remap_pending": False, "row_remap_failed": False, "pcie_replays": 0.0,
        "pcie_link_gen": 5.0, "pcie_link_width": 16.0, "nvlink_errors": 0.0, "counter_resets": 0,
        "recovery_action": 0.0, "distinct_readings": 50, "rejected_values": 0, "application_clocks_ratio": 0.0,
        "delivery_delay_s": 0.5,
    }  # fmt: skip
    return frame(WINDOWS, [normal | row for row in rows])


IDLE: Mapping[str, Any] = {
    "busy_samples": 0, "busy_ratio": 0.0, "workload_class": None, "effective_clock_mhz": None, "clock_min_mhz": None,
    "memory_clock_mhz": None, "sm_active_ratio": None, "tensor_active_ratio": None, "sw_power_cap_ratio": None,
    "pcie_link_gen": None, "power_w": 70.0, "power_max_w": 71.0, "utilization_ratio": 0.0,
    "application_clocks_ratio": None,
}  # fmt: skip
"""What a window without load looks like."""


def inventory(gpus: Mapping[str, Mapping[str, Any]], *, seen_ns: int = START_NS + 10**15) -> pl.DataFrame:
    """Rows of GPUS: an H100 each unless the row says otherwise; seen after everything, so that nothing is overdue."""
    normal = {"node": "n0", "model": "NVIDIA H100 80GB HBM3", "memory_total_bytes": 80 * 2**30, "mig_enabled": False}
    return frame(GPUS, [{"gpu_uuid": gpu, "seen_ns": seen_ns} | normal | row for gpu, row in gpus.items()])
