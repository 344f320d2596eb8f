"""Synthetic rows of the published tables, and a real HTTP server over a store.

To add a table: a function that fills what a test does not name.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import polars as pl
import uvicorn
from fastapi import FastAPI

from analytics.frames import frame
from telemetry.tables import EVENTS, GPUS, JOBS, MEASUREMENTS, NODES, SCORES, TOPOLOGY, TRANSITIONS, VARIANCE, WINDOWS

SECOND = 10**9
MINUTE = 60 * SECOND
HOUR = 3_600 * SECOND
DAY = 24 * HOUR
START = 1_767_225_600 * SECOND  #: 2026-01-01 00:00 UTC

Row = Mapping[str, Any]


def windows(rows: Sequence[Row]) -> pl.DataFrame:
    """Rows of `windows`: a minute of a busy GPU at 1 Hz unless told otherwise."""
    usual = {
        "window_start_ns": START, "window_s": 60.0, "node": "n1", "samples": 60, "completeness_ratio": 1.0,
        "busy_samples": 60, "busy_ratio": 1.0, "workload_class": "compute", "effective_clock_mhz": 1900.0,
        "power_w": 600.0, "temperature_c": 60.0, "temperature_max_c": 65.0, "energy_j": 36_000.0, "ecc_corrected": 0.0,
        "counter_resets": 0, "distinct_readings": 50, "rejected_values": 0,
    }  # fmt: skip
    return frame(WINDOWS, [usual | dict(row) for row in rows])


def scores(rows: Sequence[Row]) -> pl.DataFrame:
    """Rows of `scores`: a standard GPU of typical speed, fresh at START, unless told otherwise."""
    usual = {
        "node": "n1", "as_of_ns": START, "window_start_ns": START - MINUTE, "peer_group": "H100|80|700", "peers": 8,
        "workload_class": "compute", "speed": 1.0, "speed_low": 0.99, "speed_high": 1.01, "evidence": 60,
        "tier": "standard", "tier_since_ns": START - HOUR, "reasons": "[]", "action": "none", "state": "{}",
    }  # fmt: skip
    return frame(SCORES, [usual | dict(row) for row in rows])


def gpus(rows: Sequence[Row]) -> pl.DataFrame:
    """Rows of `gpus`."""
    return frame(GPUS, [{"node": "n1", "seen_ns": START, "model": "NVIDIA H100 80GB HBM3", **row} for row in rows])


def nodes(rows: Sequence[Row]) -> pl.DataFrame:
    """Rows of `nodes`."""
    return frame(NODES, [{"seen_gpus": 8, "expected_gpus": 8, "place": "[]", "seen_ns": START, **row} for row in rows])


def topology(places: Mapping[str, Sequence[tuple[str, str]]]) -> pl.DataFrame:
    """Rows of `topology` from node to (level, value), nearest first."""
    rows = [
        {"node": node, "position": i, "level": level, "value": value, "source": "file"}
        for node, pairs in places.items()
        for i, (level, value) in enumerate(pairs)
    ]
    return frame(TOPOLOGY, rows)


def transitions(rows: Sequence[Row]) -> pl.DataFrame:
    """Rows of `transitions`."""
    usual = {"time_ns": START, "gpu_uuid": "GPU-1", "node": "n1", "from_tier": "standard", "to_tier": "degraded"}
    return frame(TRANSITIONS, [{**usual, "reasons": "[]", "action": "watch", **row} for row in rows])


def events(rows: Sequence[Row]) -> pl.DataFrame:
    """Rows of `events`."""
    return frame(
        EVENTS,
        [{"time_ns": START, "node": "n1", "gpu_uuid": "GPU-1", "kind": "xid", "code": 79, **row} for row in rows],
    )


def measurements(rows: Sequence[Row]) -> pl.DataFrame:
    """Rows of `measurements`."""
    usual = {"time_ns": START, "scope": "gpu", "subject": "GPU-1", "name": "sgemm", "workload_class": "compute"}
    return frame(
        MEASUREMENTS, [{**usual, "value": 1.0, "unit": "ms", "higher_is_better": False, **row} for row in rows]
    )


def variance(rows: Sequence[Row]) -> pl.DataFrame:
    """Rows of `variance`."""
    usual = {"scope": "gpu", "name": "sgemm", "workload_class": "compute", "peer_group": "A", "position": 0, "units": 8}
    return frame(VARIANCE, [{**usual, "nil": False, "as_of_ns": START, **row} for row in rows])


def jobs(rows: Sequence[Row]) -> pl.DataFrame:
    """Rows of `jobs`."""
    usual = {"gpu_uuid": "GPU-1", "node": "n1", "job_id": "7", "source": "slurm", "started_ns": START, "seen_ns": START}
    return frame(JOBS, [{**usual, "ended": False, **row} for row in rows])


class Clock:
    """A clock that a test sets."""

    def __init__(self, now_ns: int = START) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        return self.now_ns


@contextmanager
def served(app: FastAPI) -> Iterator[httpx.Client]:
    """A client of this application on a real server on a free port; stopped at the end."""
    server = uvicorn.Server(
        uvicorn.Config(
            app, host="127.0.0.1", port=0, log_level="critical", access_log=False, timeout_graceful_shutdown=2
        )
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started:
        assert thread.is_alive(), "the server ended before it listened"
        assert time.monotonic() < deadline, "the server does not listen"
        time.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        assert not thread.is_alive(), "the server does not stop"
