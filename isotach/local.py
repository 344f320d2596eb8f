"""Everything in one process over the in-memory transport: what `up`, `demo` and `import` share.

To add a job: one line in `LocalSite.start`.
"""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

import polars as pl

from analytics.store import Store
from isotach.process import Roles
from streams import Outgoing, Producer
from streams.counters import Counters
from streams.journal import Journal
from streams.materialise import CaughtUp, run_materialiser
from streams.memory import MemoryTransport
from streams.score import run_score_job
from streams.topics import specs
from streams.window import run_window_job


class LocalSite:
    """A store, its journal, the transport and the jobs of one process; StoreError if another has them."""

    def __init__(
        self,
        store: Path | None,
        *,
        window_s: float = 60.0,
        lateness_s: float = 30.0,
        idle_s: float = 60.0,
        max_skew_s: float = 60.0,
        grace_s: float = 90.0,
        telemetry_partitions: int = 1,
        clock_ns: Callable[[], int] = time.time_ns,
        thresholds: Mapping[str, Any] = MappingProxyType({}),
        places: pl.DataFrame | None = None,
    ) -> None:
        with ExitStack() as parts:
            self.store = parts.enter_context(Store(store))
            journal = None
            if store is not None:
                journal = Journal(store.with_name(store.name + ".journal"))
                parts.callback(journal.close)
            self.transport = MemoryTransport(clock_ns=clock_ns, journal=journal)
            parts.callback(self.transport.close)
            self.transport.ensure_topics(specs(telemetry_partitions=telemetry_partitions))
            self._parts = parts.pop_all()
        self.caught_up = CaughtUp()
        self.counters = Counters()
        self._window_s, self._lateness_s = window_s, lateness_s
        self._idle_s, self._max_skew_s = idle_s, max_skew_s
        self._grace_s = grace_s
        self._clock_ns = clock_ns
        self._thresholds = thresholds
        self._places = places

    def start(self, roles: Roles) -> None:
        """Start the jobs."""
        roles.start("window", self._run_window)
        roles.start("score", self._run_score)
        roles.start("materialiser", self._run_materialiser)

    def _run_window(self, stop: threading.Event) -> None:
        run_window_job(
            self.transport,
            member="window",
            window_s=self._window_s,
            lateness_s=self._lateness_s,
            idle_s=self._idle_s,
            max_skew_s=self._max_skew_s,
            stop=stop,
            clock_ns=self._clock_ns,
            counters=self.counters,
        )

    def _run_score(self, stop: threading.Event) -> None:
        run_score_job(
            self.transport,
            member="score",
            stop=stop,
            clock_ns=self._clock_ns,
            grace_s=self._grace_s,
            counters=self.counters,
            thresholds=self._thresholds,
            places=self._places,
        )

    def _run_materialiser(self, stop: threading.Event) -> None:
        run_materialiser(self.transport, self.store, stop=stop, caught_up=self.caught_up, counters=self.counters)

    def close(self) -> None:
        """After the roles have ended."""
        self._parts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Ingest:
    """What POST /v1/telemetry calls: writes one message and returns once the log has it. For use by many threads."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._lock = threading.Lock()

    def __call__(self, topic: str, key: bytes | None, headers: Mapping[str, bytes], value: bytes) -> None:
        with self._lock:
            self._producer.send(Outgoing(topic=topic, key=key, headers=headers, value=value))
            self._producer.flush()
