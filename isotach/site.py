"""What `serve`, `up` and `demo` share around a store: the application, its topology, retention.

To add housekeeping: one call in `housekeeping`.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from analytics.archive import archive
from analytics.store import Store
from analytics.topology import read_topology
from api.app import create_app
from isotach.settings import read_token

if TYPE_CHECKING:
    from fastapi import FastAPI

    from streams.materialise import CaughtUp

LOG = logging.getLogger("isotach")
DAY_NS = 86_400 * 10**9
HOUSEKEEPING_EVERY_S = 600.0


def application(
    settings: Mapping[str, Any],
    store: Store,
    caught_up: "CaughtUp",
    *,
    ingest: Callable[[str, bytes | None, Mapping[str, bytes], bytes], None] | None,
) -> "FastAPI":
    """The API over this store."""
    topology = settings.get("topology")
    return create_app(
        store,
        ingest=ingest,
        ready=lambda: () if caught_up.ready.is_set() else ("the store is catching up with the log",),
        token=read_token(settings.get("token", ""), settings.get("token_file")),
        topology=None if topology is None else read_topology(topology),
        stale_after_s=settings.get("stale_after_s", 300.0),
    )


def housekeeping(settings: Mapping[str, Any], store: Store) -> Callable[[threading.Event], None]:
    """Retention: windows past their days go to the archive, if there is one, then leave the store."""

    def run(stop: threading.Event) -> None:
        while not stop.wait(HOUSEKEEPING_EVERY_S):
            before_ns = time.time_ns() - int(settings["keep_windows_days"] * DAY_NS)
            if settings["archive"] is not None:
                archive(store, settings["archive"], before_ns=before_ns)
            store.retain(before_ns=before_ns)

    return run
