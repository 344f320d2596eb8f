"""What `serve`, `up` and `demo` share around a store: the application, its topology, retention.

To add housekeeping: one call in `housekeeping`.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analytics.archive import archive
from analytics.fleet_variance import refresh_variance
from analytics.node_names import under_names_of
from analytics.store import Store
from api.app import create_app
from isotach.settings import read_token

if TYPE_CHECKING:
    import polars as pl
    from fastapi import FastAPI
    from prometheus_client.registry import Collector

    from streams.materialise import CaughtUp

LOG = logging.getLogger("isotach")
DAY_NS = 86_400 * 10**9
HOUSEKEEPING_EVERY_S = 600.0
VARIANCE_EVERY_S = 180.0  #: at most; it reads a month of results
HISTORY = ("windows_hourly", "blocks_hourly", "transitions", "events", "measurements", "jobs")


def application(
    settings: Mapping[str, Any],
    store: Store,
    caught_up: "CaughtUp",
    *,
    ingest: Callable[[str, bytes | None, Mapping[str, bytes], bytes], None] | None,
    counters: "Sequence[Collector]" = (),
    places: "pl.DataFrame | None" = None,
) -> "FastAPI":
    """The API over this store; `places`: rows of TOPOLOGY from a file."""
    if places is not None:
        store.replace_topology(places)  # roll-ups and archive read it there
        name_places(store)
    return create_app(
        store,
        ingest=ingest,
        ready=lambda: () if caught_up.ready.is_set() else ("the store is catching up with the log",),
        token=read_token(settings.get("token", ""), settings.get("token_file")),
        topology=places,
        stale_after_s=settings.get("stale_after_s", 300.0),
        counters=counters,
    )


def name_places(store: Store) -> None:
    """Put the stored topology under the names by which nodes report, where the file has them with another domain."""
    topology = store.table("topology")
    named = under_names_of(topology, store.table("nodes")["node"])
    if named is not topology:
        store.replace_topology(named)


def housekeeping(settings: Mapping[str, Any], store: Store) -> Callable[[threading.Event], None]:
    """Places under the names of nodes that have come; what is past its days leaves the store, windows archived."""

    def run(stop: threading.Event) -> None:
        while not stop.wait(HOUSEKEEPING_EVERY_S):
            name_places(store)
            now_ns = time.time_ns()
            windows_ns = now_ns - int(settings["keep_windows_days"] * DAY_NS)
            history_ns = now_ns - int(settings["keep_history_days"] * DAY_NS)
            if settings["archive"] is not None:
                archive(store, settings["archive"], before_ns=windows_ns)
            store.retain(before_ns={"windows": windows_ns} | dict.fromkeys(HISTORY, history_ns))

    return run


def variance(store: Store, *, every_s: float = VARIANCE_EVERY_S) -> Callable[[threading.Event], None]:
    """Variance components, kept up to date with the results in the store."""

    def run(stop: threading.Event) -> None:
        seen = -1
        while not stop.wait(every_s):
            version = store.version_of("measurements", "topology")
            if version != seen:
                seen = version
                refresh_variance(store)

    return run
