"""A fleet of three nodes over real HTTP, shared by the tests that only read it."""

from collections.abc import Iterator

import httpx
import pytest
from support.store import (
    HOUR,
    MINUTE,
    START,
    Clock,
    events,
    gpus,
    jobs,
    nodes,
    scores,
    served,
    topology,
    transitions,
    variance,
    windows,
)

from analytics.store import Store
from api.app import create_app

PLACES = topology({"n1": [("rack", "r1"), ("site", "north")], "n2": [("rack", "r1"), ("site", "north")]})
SLOW = '[{"code":"slow","value":0.9,"limit":0.98,"text":"slow"}]'
SPEEDS = '{"compute":{"speed":%s,"low":0.9,"high":1.1,"samples":60,"source":"telemetry"},"memory":{"speed":%s}}'


def fill(store: Store) -> None:
    """Eight GPUs on three nodes: every tier, a tie, one without a speed, one without a score."""
    told = [
        ("GPU-b", "n1", "premium", 1.02, 0.97),
        ("GPU-a", "n1", "standard", 1.02, 1.01),
        ("GPU-c", "n1", "degraded", 0.90, 0.99),
        ("GPU-d", "n2", "standard", None, None),
        ("GPU-e", "n2", "quarantine", 1.05, 1.05),
        ("GPU-f", "n2", "unknown", 1.04, 1.04),
        ("GPU-g", "n3", "premium", 1.03, 1.02),
    ]
    store.write(
        {
            "scores": scores(
                [
                    {
                        "gpu_uuid": uuid,
                        "node": node,
                        "tier": tier,
                        "speed": speed,
                        "speeds": SPEEDS % (speed, memory) if speed else None,
                        "reasons": SLOW if tier == "degraded" else "[]",
                    }
                    for uuid, node, tier, speed, memory in told
                ]
            ),
            "gpus": gpus(
                [{"gpu_uuid": uuid, "node": node, "slot": i} for i, (uuid, node, *_) in enumerate(told)]
                + [{"gpu_uuid": "GPU-h", "node": "n3", "slot": 7}]
            ),
            "nodes": nodes(
                [
                    {"node": "n1", "expected_gpus": 3},
                    {"node": "n2", "expected_gpus": 4},
                    {"node": "n3", "place": '[["rack","r2"]]'},
                ]
            ),
            "windows": windows([{"gpu_uuid": "GPU-c", "window_start_ns": START - i * MINUTE} for i in range(1, 4)]),
            "transitions": transitions(
                [{"transition_id": f"t{i}", "gpu_uuid": "GPU-c", "time_ns": START - i * HOUR} for i in range(3)]
                + [{"transition_id": "t9", "gpu_uuid": "GPU-e", "node": "n2", "to_tier": "quarantine"}]
            ),
            "events": events(
                [{"gpu_uuid": "GPU-c", "time_ns": START - HOUR}, {"gpu_uuid": "", "kind": "driver_reload", "code": 0}]
            ),
            "jobs": jobs(
                [{"job_id": "7", "gpu_uuid": uuid, "seen_ns": START + MINUTE} for uuid in ("GPU-a", "GPU-b")]
                + [{"job_id": "6", "gpu_uuid": "GPU-a", "started_ns": START - HOUR, "ended": True}]
                + [{"job_id": "ml/train-0", "gpu_uuid": "GPU-e", "node": "n2", "source": "kubernetes"}]
            ),
            "topology": PLACES,
            "variance": variance([{"level": "gpu", "share": 0.9}, {"level": "run", "share": 0.1, "position": 1}]),
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def clock() -> Clock:
    """The time is one minute after the newest score."""
    return Clock(START + MINUTE)


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    """A real store with the fleet."""
    with Store(None) as opened:
        fill(opened)
        yield opened


@pytest.fixture(scope="module")
def client(store: Store, clock: Clock) -> Iterator[httpx.Client]:
    """A client of a real server over the fleet."""
    with served(create_app(store, clock_ns=clock)) as client:
        yield client
