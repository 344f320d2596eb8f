"""The agent: one loop for every collector of a node, from a call to a message in the log.

To run another collector: an entry in `collectors`; this loop times, counts, joins, encodes and sends for all.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry

from collectors import Collector
from collectors.batches import Batches
from collectors.outbox import MAX_BYTES, REPLAY_SPEED, Outbox
from collectors.schedule import Schedule
from collectors.self_metrics import AgentMetrics
from collectors.spool import Spool
from collectors.upkeep import Manners, Upkeep
from collectors.worker import Terms, Worker
from streams import Producer
from telemetry.errors import EndOfInput, NoData, SettingsError

log = logging.getLogger(__name__)

ATTEND_EVERY_S = 0.5


class Agent:
    """Runs collectors, each as (collector, seconds between calls; 0 is as fast as it goes), and sends what they give.

    Each collector has a thread; one that hangs, fails or is unavailable does not disturb the others. What it says
    goes to `isotach.telemetry`, `isotach.inventory`, `isotach.events` and `isotach.measurements` through `producer`,
    which stays the caller's to close. While the log is away messages wait in `spool`, else in memory, up to
    `max_queue_bytes`. Collectors and spool are closed at the end. `manners` can be changed later, by `adopt` of
    `upkeep`. A node's first inventory waits for any time below `start_spread_s`.
    """

    def __init__(
        self,
        *,
        collectors: Mapping[str, tuple[Collector, float]],
        producer: Producer,
        node: str,
        clock_ns: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
        batch_s: float = 10.0,
        inventory_every_s: float = 300.0,
        registry: CollectorRegistry | None = None,
        jitter: random.Random | None = None,
        duration_s: float | None = None,
        max_queue_bytes: int = MAX_BYTES,
        spool: Spool | None = None,
        replay_speed: float = REPLAY_SPEED,
        hang_after_s: float = 30.0,
        stop_within_s: float = 10.0,
        manners: Manners = Manners(),  # noqa: B008 - frozen
        start_spread_s: float = 0.0,
        version: str | None = None,
    ) -> None:
        if not collectors:
            raise SettingsError("the agent has no collector to run")
        if any(interval_s < 0 for _, interval_s in collectors.values()) or batch_s <= 0:
            raise SettingsError("intervals of collectors are 0 or more seconds, batch_s is above 0")
        self._producer = producer
        self._monotonic = monotonic
        self._wait = wait
        self._duration_s = duration_s
        self._stop_within_s = stop_within_s
        self._metrics = AgentMetrics(registry or CollectorRegistry())
        random_ = jitter or random.Random()  # noqa: S311 - spreads load, guards nothing

        def spread(seconds: float) -> float:
            return seconds * random_.uniform(0.75, 1.25)

        self._outbox = Outbox(
            max_bytes=max_queue_bytes, spool=spool, replay_speed=replay_speed, monotonic=monotonic, spread=spread
        )
        terms = Terms(
            node=node,
            agent_version=version or _version(),
            inventory_every_s=inventory_every_s,
            hang_after_s=hang_after_s,
            clock_ns=clock_ns,
            monotonic=monotonic,
            spread=spread,
            first_inventory_s=lambda: random_.uniform(0.0, start_spread_s),
        )
        self._workers = [
            Worker(
                name=name,
                collector=collector,
                interval_s=interval_s,
                schedule=Schedule(interval_s=interval_s, now=monotonic(), jitter=random_),
                batches=Batches(
                    batch_s=batch_s, first_s=(lambda: random_.uniform(0.0, batch_s)) if interval_s > 0 else None
                ),
                outbox=self._outbox,
                metrics=self._metrics,
                terms=terms,
            )
            for name, (collector, interval_s) in collectors.items()
        ]
        self.upkeep = Upkeep(
            workers=self._workers,
            outbox=self._outbox,
            metrics=self._metrics,
            node=node,
            manners=manners,
            clock_ns=clock_ns,
            monotonic=monotonic,
        )

    def run(self, stop: threading.Event) -> None:
        """Collect and send until `stop` is set, `duration_s` is over or every input has ended; then flush.

        At the end of the duration `stop` is set, for the threads here and whoever else waits for it.
        """
        end = None if self._duration_s is None else self._monotonic() + self._duration_s
        threads = [
            threading.Thread(target=self._work, args=(worker, stop), name=f"collector-{worker.name}", daemon=True)
            for worker in self._workers
        ]
        for thread in threads:
            thread.start()
        whole = False
        try:
            while not stop.is_set() and not all(worker.ended for worker in self._workers):
                self._forward(stop)
                for worker in self._workers:
                    worker.attend()
                self.upkeep.attend()
                if end is not None and self._monotonic() >= end:
                    stop.set()
            for worker in self._workers:
                if worker.ended:
                    worker.finish()
            while not stop.is_set() and self._outbox.messages:
                self._forward(stop)
            whole = True
        finally:
            if not whole:
                stop.set()  # so that the collectors' threads end too
            self._shut_down(threads)

    def _work(self, worker: Worker, stop: threading.Event) -> None:
        """The loop of every collector: ask it when it is due, whatever happened last time."""
        try:
            while not self._wait(stop, worker.wait_s()):
                if not worker.due():
                    continue
                try:
                    worker.ask()
                except NoData:
                    worker.idle()
                except EndOfInput:
                    log.info("%s: end of input", worker.name)
                    return
                except Exception as error:  # noqa: BLE001 - no source may end the agent; counted, logged, an event
                    worker.failed(error)
                else:
                    worker.worked()
        finally:
            worker.ended = True

    def _forward(self, stop: threading.Event) -> None:
        def enough() -> bool:
            return stop.is_set() or (not self._outbox.messages and all(worker.ended for worker in self._workers))

        self._outbox.send(self._producer, for_s=ATTEND_EVERY_S, until=enough)
        self._show_queue()

    def _shut_down(self, threads: list[threading.Thread]) -> None:
        until = self._monotonic() + self._stop_within_s
        self._outbox.release()
        for patience_s in (1.0, 2.0):  # most end by themselves; closing ends a call that can be ended
            for thread in threads:
                thread.join(max(0.0, min(patience_s, until - self._monotonic())))
            for worker in self._workers:
                worker.close()
        for thread in threads:
            if thread.is_alive():
                log.error("%s does not come back: left behind", thread.name)
        for worker in self._workers:
            worker.finish()
        self._outbox.close(self._producer, within_s=max(1.0, until - self._monotonic()))
        self._show_queue()

    def _show_queue(self) -> None:
        self._metrics.queue_messages.set(self._outbox.messages)
        self._metrics.queue_bytes.set(self._outbox.bytes)
        self._metrics.dropped.set(self._outbox.dropped)
        self._metrics.dropped_samples.set(self._outbox.dropped_samples)
        self._metrics.spool_messages.set(self._outbox.spooled)
        self._metrics.spool_works.set(1 if self._outbox.spool_works else 0)
        self._metrics.log_available.set(1 if self._outbox.available else 0)


def _version() -> str | None:
    """The installed version; whoever knows it saves the megabyte that asking for it takes."""
    import importlib.metadata

    try:
        return importlib.metadata.version("isotach")
    except importlib.metadata.PackageNotFoundError:
        return None
