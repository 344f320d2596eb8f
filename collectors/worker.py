"""One collector at work: timed, counted, its readings turned into messages. The loop that asks it is the agent's.

To change what becomes of a reading: `_take`.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from collectors import Collector, Reading
from collectors.batches import Batches, halves
from collectors.job_book import REPEAT_S, JobBook
from collectors.outbox import PATIENCE_S, Outbox
from collectors.rate import Rates
from collectors.schedule import Schedule
from collectors.self_metrics import AgentMetrics
from streams import Outgoing
from streams.topics import EVENTS, INVENTORY, JOBS, MEASUREMENTS, TELEMETRY
from telemetry.codec import JSON, MAX_VALUE_BYTES, Encoder
from telemetry.errors import SourceHangs, SourceUnavailable
from telemetry.records import Event, NodeInventory, SampleBatch
from telemetry.rows import to_json

log = logging.getLogger(__name__)

COMPLETENESS_TICKS = 60
QUIET_S = 300.0  #: the same trouble of a flapping source is told again only after this
NAP_S = 5.0  #: a collector that is asked seldom looks so often whether its interval was changed
NO_DATA_PAUSE_S = 0.05  #: for collectors without an interval of their own
_JSON_HEADERS = {"content-type": JSON.encode()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What all workers of an agent share."""

    node: str
    agent_version: str | None
    inventory_every_s: float
    hang_after_s: float
    clock_ns: Callable[[], int]
    monotonic: Callable[[], float]
    spread: Callable[[float], float]  #: a length of time, a little longer or shorter: so that fleets do not march
    first_inventory_s: Callable[[], float] = float  #: how long a node's first inventory waits


class Worker:
    """One collector and what is known of it.

    `ask`, `worked`, `idle`, `failed` belong to the thread of this collector; `attend` and `finish` to the agent's own,
    and may run beside a call that hangs: what was collected before it still goes out.
    """

    def __init__(
        self,
        *,
        name: str,
        collector: Collector,
        interval_s: float,
        schedule: Schedule,
        batches: Batches,
        outbox: Outbox,
        metrics: AgentMetrics,
        terms: Terms,
    ) -> None:
        self.name = name
        self.ended = False
        self.paces = False  #: whether its batches leave their interval to the agent: then it can be changed
        self.rates = Rates()
        self._collector = collector
        self._interval_s = interval_s
        self._slower = 1
        self._schedule = schedule
        self._batches = batches
        self._outbox = outbox
        self._metrics = metrics
        self._terms = terms
        self._encoder = Encoder()
        self._lock = threading.Lock()  # batches, encoder, inventory, rates
        self._inventory: dict[str, tuple[NodeInventory, float]] = {}
        self._waiting: set[str] = set()  # nodes whose inventory is still to be sent
        self._jobs = JobBook()
        self._known_gpus = 0
        self._answered_ns = 0
        self._node_ns: dict[str, int] = {}  # of collectors that spread their work: when each node was heard of
        self._spread = False
        self._ticks: deque[float] = deque(maxlen=COMPLETENESS_TICKS)
        self._calling_since: float | None = None
        self._hang_told = False
        self._trouble: str | None = None
        self._told_at: dict[str, float] = {}

    def wait_s(self) -> float:
        """Seconds until the collector is to be asked again, or it has to be looked when that is."""
        return min(NAP_S, self._schedule.wait_s(self._terms.monotonic()))

    def due(self) -> bool:
        """Whether the collector is to be asked now."""
        return self._schedule.wait_s(self._terms.monotonic()) <= 0

    @property
    def collector(self) -> Collector:
        """What it asks."""
        return self._collector

    @property
    def span_s(self) -> float:
        """Seconds between two calls now."""
        return self._interval_s * self._slower

    def pace(self, *, interval_s: float | None = None, slower: int | None = None) -> None:
        """Ask it at another interval, or so many times slower, from now on. Batches say what holds when they come."""
        self._interval_s = self._interval_s if interval_s is None else interval_s
        self._slower = self._slower if slower is None else slower
        self._schedule.pace(self.span_s, now=self._terms.monotonic())

    def batch(self, batch_s: float) -> None:
        """Join samples to messages of another length from the next one on."""
        self._batches.batch_s = batch_s

    def ask(self) -> None:
        """One call of the collector, and its reading on the way; raises whatever the collector raises."""
        started = self._terms.monotonic()
        self._calling_since = started
        try:
            reading = self._collector.collect()
        finally:
            self._calling_since = None
            self._metrics.duration.labels(self.name).set(self._terms.monotonic() - started)
        self._take(reading)

    def worked(self) -> None:
        """The call went well, whether or not there was anything to say."""
        self._count_missed(self._schedule.done(self._terms.monotonic()))
        self._metrics.success.labels(self.name).set(1)
        if self._trouble is not None or self._hang_told:
            log.info("%s: works again", self.name)
        self._trouble = None
        self._hang_told = False

    def idle(self) -> None:
        """The source had nothing to say, which is no failure."""
        self.worked()
        if self._interval_s <= 0:
            self._schedule.pause(self._terms.monotonic(), NO_DATA_PAUSE_S)

    def failed(self, error: Exception) -> None:
        """The call failed: say so once, try again later."""
        name = type(error).__name__
        self._metrics.success.labels(self.name).set(0)
        self._metrics.errors.labels(self.name, name).inc()
        self._ticks.append(0.0)
        self._count_missed(self._schedule.back_off(self._terms.monotonic()))
        if self._trouble != name:
            known = isinstance(error, SourceUnavailable)
            kind = "collector_hang" if isinstance(error, SourceHangs) else "collector_failed"
            self._tell(kind, str(error) if known else f"{name}: {error}", cause=None if known else error)
        self._trouble = name

    def attend(self) -> None:
        """Send what has waited long enough, repeat inventory that is due, notice a call that hangs."""
        now = self._terms.monotonic()
        since = self._calling_since
        limit = max(self._terms.hang_after_s, 3 * self.span_s)
        if since is not None and now - since > limit and not self._hang_told:
            self._hang_told = True
            self._metrics.success.labels(self.name).set(0)
            self._metrics.completeness.labels(self.name).set(0)
            self._tell("collector_hang", f"no answer for {now - since:.0f} s", patience_s=0.0)
        if self._lock.acquire(blocking=False):  # a busy worker does the same by itself, soon
            try:
                for batch in self._batches.due(now=now):
                    self._publish(batch, patience_s=0.0)
                self._repeat_inventory(now)
                self._tell_ceased(now)
            finally:
                self._lock.release()

    def finish(self) -> None:
        """Send what still waits to be joined; the worker itself may be stuck in its collector."""
        if self._lock.acquire(timeout=1.0):
            try:
                for batch in self._batches.drain():
                    self._publish(batch, patience_s=0.0)
                self._repeat_inventory(self._terms.monotonic(), at_once=True)
                self._tell_ceased(self._terms.monotonic(), at_once=True)
            finally:
                self._lock.release()

    def close(self) -> None:
        """Close the collector, which also ends a call that can be ended."""
        self._collector.close()

    def _tell(self, kind: str, detail: str, *, cause: Exception | None = None, patience_s: float | None = None) -> None:
        """Log and event, once for each change of state, and not more often than every five minutes if it flaps."""
        now = self._terms.monotonic()
        if kind in self._told_at and now - self._told_at[kind] < QUIET_S:
            return
        self._told_at[kind] = now
        log.error("%s: %s", self.name, detail, exc_info=cause)
        event = Event(
            time_ns=self._terms.clock_ns(),
            node=self._terms.node,
            gpu_uuid="",
            kind=kind,
            detail=f"{self.name}: {detail}"[:1000],
        )
        self._send_event(event, patience_s=self._patience() if patience_s is None else patience_s)

    def _patience(self) -> float | None:
        """Seconds: a collector with its own pace loses the oldest rather than the newest; one without waits."""
        return PATIENCE_S if self._interval_s > 0 else None

    def _count_missed(self, missed: int) -> None:
        if missed:
            self._metrics.missed.labels(self.name).inc(missed)
            self._ticks.extend([0.0] * min(missed, COMPLETENESS_TICKS))
        if self._ticks:
            self._metrics.completeness.labels(self.name).set(sum(self._ticks) / len(self._ticks))

    def _take(self, reading: Reading) -> None:
        now, patience_s = self._terms.monotonic(), self._patience()
        with self._lock:
            for batch in reading.samples:
                self.paces = self.paces or (batch.interval_s <= 0 < self._interval_s)
                paced = batch if batch.interval_s > 0 else replace(batch, interval_s=self.span_s or 1.0)
                for ready in self._batches.add(paced, now=now):
                    self._publish(ready, patience_s=patience_s)
            for inventory in reading.inventory:
                self._take_inventory(inventory, now, patience_s=patience_s)
            told = [(event.kind, self.rates.event(event, now=now)) for event in reading.events]
        for kind, event in told:
            if event is None:
                self._metrics.held.labels(kind).inc()
            else:
                self._send_event(event, patience_s=patience_s)
        for measurement in reading.measurements:
            key = measurement.subject.encode()
            self._outbox.put(_json(MEASUREMENTS, key, to_json(measurement)), patience_s=patience_s)
        for jobs in reading.jobs:
            news = self._jobs.news(jobs, now=now, repeat_s=self._terms.spread(REPEAT_S))
            if news is not None:
                self._outbox.put(_json(JOBS, news.node.encode(), to_json(news)), patience_s=patience_s)
        self._metrics.samples.labels(self.name).inc(sum(len(batch) for batch in reading.samples))
        for reason, count in reading.rejected.items():
            metric, _, why = reason.partition(":")
            self._metrics.rejected.labels(self.name, metric, why).inc(count)
        if reading.due is not None:
            self._spread = True
            self._node_ns |= dict.fromkeys((batch.node for batch in reading.samples), self._terms.clock_ns())
        if reading.samples or reading.inventory or self._known_gpus:
            self._answered_ns = self._terms.clock_ns()
            self._count_answers(sum(len(batch.gpus) for batch in reading.samples), due=reading.due)

    def _count_answers(self, answered: int, *, due: int | None) -> None:
        if self._interval_s <= 0:
            return  # a recording at full speed promises nothing by time
        if due is not None:
            self._known_gpus = max(self._known_gpus, answered)
            if due:
                self._ticks.append(min(1.0, answered / due))
            return
        seen = sum(max(record.expected_gpus or 0, len(record.gpus)) for record, _ in self._inventory.values())
        # The most there ever were: a GPU that is lost leaves the inventory, and must not leave the count.
        self._known_gpus = max(self._known_gpus, seen, answered)
        self._ticks.append(answered / self._known_gpus if self._known_gpus else 1.0)

    def _publish(self, batch: SampleBatch, *, patience_s: float | None) -> None:
        try:
            encoded = self._encoder.encode(batch)
        except (ValueError, TypeError, BufferError) as error:
            self._metrics.rejected.labels(self.name, "batch", "unencodable").inc()
            if "unencodable" not in self._told_at:
                log.error("%s: a batch of %s cannot be encoded (said once): %s", self.name, batch.node, error)
            self._told_at["unencodable"] = self._terms.monotonic()
            return
        if len(encoded.value) > MAX_VALUE_BYTES and len(batch) > 1:
            for half in halves(batch):
                self._publish(half, patience_s=patience_s)
            return
        self._metrics.batches.labels(self.name).inc()
        self._metrics.bytes.labels(self.name).inc(len(encoded.value))
        self.rates.spend(batch.node, now=self._terms.monotonic())
        message = Outgoing(topic=TELEMETRY, key=encoded.key, value=encoded.value, headers=encoded.headers)
        self._outbox.put(message, patience_s=patience_s, samples=len(batch))

    def _send_event(self, event: Event, *, patience_s: float | None) -> None:
        self._metrics.events.labels(event.kind).inc()
        self._outbox.put(event_message(event), patience_s=patience_s)

    def _tell_ceased(self, now: float, *, at_once: bool = False) -> None:
        for event in self.rates.ceased(now=now, at_once=at_once):
            self._send_event(event, patience_s=0.0)

    def _take_inventory(self, inventory: NodeInventory, now: float, *, patience_s: float | None) -> None:
        """Send it now, or when it may: the newest of each node is kept until then."""
        if inventory.agent_version is None:
            inventory = replace(inventory, agent_version=self._terms.agent_version)
        new = inventory.node not in self._inventory
        wait_s = self._terms.first_inventory_s() if new and self.paces else 0.0  # fleets that march are real ones
        if inventory.node in self._waiting:
            self._inventory[inventory.node] = (inventory, self._inventory[inventory.node][1])
        elif wait_s > 0 or not self.rates.may(inventory.node, now=now):
            self._waiting.add(inventory.node)
            self._inventory[inventory.node] = (inventory, now + (wait_s or 1.0))
        else:
            self._publish_inventory(inventory, now, patience_s=patience_s)

    def _publish_inventory(self, inventory: NodeInventory, now: float, *, patience_s: float | None) -> None:
        self._waiting.discard(inventory.node)
        self._inventory[inventory.node] = (inventory, now + self._terms.spread(self._terms.inventory_every_s))
        self._outbox.put(_json(INVENTORY, inventory.node.encode(), to_json(inventory)), patience_s=patience_s)

    def _repeat_inventory(self, now: float, *, at_once: bool = False) -> None:
        """Inventory that still holds: its collector has worked since, and would have given a changed one.

        And inventory that waited until it may be sent.
        """
        for inventory, due in list(self._inventory.values()):
            if inventory.node in self._waiting:
                if at_once or (due <= now and self.rates.may(inventory.node, now=now)):
                    self._publish_inventory(inventory, now, patience_s=0.0)
                continue
            seen_ns = self._node_ns.get(inventory.node, 0) if self._spread else self._answered_ns
            if due <= now and seen_ns and seen_ns != inventory.seen_ns:  # smaller, if the clock was set back
                self._publish_inventory(replace(inventory, seen_ns=seen_ns), now, patience_s=0.0)


def event_message(event: Event) -> Outgoing:
    """The event as it goes to the log."""
    return _json(EVENTS, (event.gpu_uuid or event.node).encode(), to_json(event))


def _json(topic: str, key: bytes, value: bytes) -> Outgoing:
    return Outgoing(topic=topic, key=key, value=value, headers=_JSON_HEADERS)
