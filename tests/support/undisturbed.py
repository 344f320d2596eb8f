"""What a site's windows and scores are when nothing goes wrong: the whole of a simulated fleet through one process.

To compare another table: a field in `Outcome`.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from polars.testing import assert_frame_equal
from prometheus_client import CollectorRegistry
from support.jobs import eventually

from analytics.store import Store
from collectors.agent import Agent
from collectors.simulated import Simulated
from isotach.local import LocalSite
from isotach.process import Roles
from telemetry.tables import WINDOWS


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Tables of one store, in an order of their own."""

    windows: pl.DataFrame
    scores: pl.DataFrame
    transitions: pl.DataFrame


def same_windows(found: pl.DataFrame, expected: pl.DataFrame) -> None:
    """Every row and column to the last bit, but for when messages came, which is known of each and their own."""
    late = "delivery_delay_s"
    assert_frame_equal(found.drop(late), expected.drop(late), check_exact=True)
    assert found[late].null_count() == expected[late].null_count() == 0


def outcome(store: Store) -> Outcome:
    """What is in a store."""
    return Outcome(
        windows=store.table("windows").sort(WINDOWS.key),
        scores=store.table("scores").sort("gpu_uuid"),
        transitions=store.table("transitions").sort("transition_id"),
    )


def outcome_of(path: Path) -> Outcome:
    """What is in a store's file that no process has open."""
    store = Store(path)
    try:
        return outcome(store)
    finally:
        store.close()


def last_window_ns(*, start_ns: int, seconds: float, lateness_s: float, window_s: float) -> int:
    """Start of the last window that closes when a fleet with samples every second stops after so long."""
    window_ns = round(window_s * 1e9)
    watermark_ns = start_ns + round((seconds - 1 - lateness_s) * 1e9)
    return watermark_ns // window_ns * window_ns - window_ns


def undisturbed(fleet: Mapping[str, Any] | str, *, start_ns: int, seconds: float, seed: int, **site: Any) -> Outcome:
    """Run the fleet as fast as it goes, on the in-memory transport, until its last window is scored and stored."""
    last_ns = last_window_ns(
        start_ns=start_ns, seconds=seconds, lateness_s=site["lateness_s"], window_s=site["window_s"]
    )
    collector = Simulated(fleet=fleet, start_ns=start_ns, seed=seed, duration_s=seconds)
    with LocalSite(None, idle_s=86_400, **site) as local:
        roles = Roles(threading.Event())
        local.start(roles)
        producer = local.transport.producer(client_id="agent")
        agent = Agent(
            collectors={"simulated": (collector, 0.0)}, producer=producer, node="test", registry=CollectorRegistry()
        )
        try:
            agent.run(threading.Event())
            producer.close()
            eventually(lambda: settled(outcome(local.store), last_ns), "the last window")
        finally:
            roles.stop.set()
            roles.join()
        return outcome(local.store)


def settled(found: Outcome, last_ns: int) -> bool:
    """Whether every node's last window is there, and the scores that come of it."""
    last = found.windows.filter(pl.col("window_start_ns") == last_ns)
    nodes = found.windows["node"].n_unique()
    return nodes > 0 and last["node"].n_unique() == nodes and found.scores["window_start_ns"].max() == last_ns
