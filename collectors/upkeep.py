"""The agent's care for its node and itself: what it costs, how fast it goes, whether the clock was set.

To add a duty: a method that `attend` calls.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from collectors.brake import Brake
from collectors.clock import Clock
from collectors.footprint import Footprint, Parent
from collectors.outbox import Outbox
from collectors.self_metrics import AgentMetrics
from collectors.worker import Worker, event_message
from telemetry.records import Event

log = logging.getLogger(__name__)

SHOW_EVERY_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Manners:
    """How an agent behaves on its node: what may be changed while it runs.

    `max_cpu_ratio`: share of one core that it may take, children included, before it samples less often; 0: any.
    `max_messages_per_s`: what a paced collector may say about one node; 0: any.
    `batch_s`: how long samples of one node are joined; None: as it was.
    `intervals`: seconds between two calls by collector, for those whose pace is the agent's.
    """

    max_cpu_ratio: float = 0.0
    max_messages_per_s: float = 0.0
    batch_s: float | None = None
    intervals: Mapping[str, float] | None = None


@runtime_checkable
class Paced(Protocol):
    """A collector that has to know how often it is asked."""

    def pace(self, interval_s: float) -> None:
        """From now on once in so many seconds."""
        ...


class Upkeep:
    """Looked after once in each turn of the agent's loop, by `attend`; `turns` says how often that was.

    `adopt` may be called from another thread.
    """

    def __init__(
        self,
        *,
        workers: Sequence[Worker],
        outbox: Outbox,
        metrics: AgentMetrics,
        node: str,
        manners: Manners,
        clock_ns: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
        footprint: Footprint | None = None,
    ) -> None:
        self._workers = workers
        self._outbox = outbox
        self._metrics = metrics
        self._node = node
        self._clock_ns = clock_ns
        self._monotonic = monotonic
        self._clock = Clock(clock_ns, monotonic)
        self._parents = {one.name: one.collector for one in workers if isinstance(one.collector, Parent)}
        self._footprint = footprint or Footprint(self._pids)
        self._shown: dict[str, float] = {}
        self._show_at = monotonic()
        self._brake = Brake(max_ratio=manners.max_cpu_ratio, now=monotonic(), cpu_s=self._cpu_s())
        self.turns = 0
        metrics.slowdown.set(1)
        for outcome in ("ok", "failed"):
            metrics.reloads.labels(outcome)
        for direction in ("forward", "back"):
            metrics.clock_steps.labels(direction)
        self.adopt(manners)

    def adopt(self, manners: Manners) -> None:
        """Behave like this from now on."""
        self._brake.max_ratio = manners.max_cpu_ratio
        for worker in self._workers:
            worker.rates.per_s = manners.max_messages_per_s if worker.span_s > 0 else 0.0
            if manners.batch_s is not None:
                worker.batch(manners.batch_s)
            if manners.intervals and worker.name in manners.intervals:
                worker.pace(interval_s=manners.intervals[worker.name])
                if isinstance(worker.collector, Paced):
                    worker.collector.pace(manners.intervals[worker.name])

    def read_again(self, *, worked: bool) -> None:
        """Count that settings were read again."""
        self._metrics.reloads.labels("ok" if worked else "failed").inc()

    def attend(self) -> None:
        """One turn: cheap enough for two a second."""
        self.turns += 1
        now = self._monotonic()
        if step_s := self._clock.step_s():
            self._tell_step(step_s)
        paced = [worker for worker in self._workers if worker.paces]
        if paced and self._brake.look(now=now, cpu_s=self._cpu_s):
            for worker in paced:
                worker.pace(slower=self._brake.factor)
            self._metrics.slowdown.set(self._brake.factor)
        if now >= self._show_at:
            self._show_at = now + SHOW_EVERY_S
            self._show()

    def _tell_step(self, step_s: float) -> None:
        way = "forward" if step_s > 0 else "back"
        self._metrics.clock_steps.labels(way).inc()
        detail = f"agent: the wall clock was set {way} by {abs(step_s):.1f} s, or the machine stood still"
        log.warning("%s", detail)
        event = Event(time_ns=self._clock_ns(), node=self._node, gpu_uuid="", kind="clock_skew", detail=detail)
        self._metrics.events.labels(event.kind).inc()
        self._outbox.put(event_message(event), patience_s=0.0)

    def _pids(self) -> list[int]:
        return [pid for parent in self._parents.values() for pid in parent.pids]

    def _cpu_s(self) -> float:
        cost = self._footprint.cost()
        return cost.own_cpu_s + cost.children_cpu_s

    def _show(self) -> None:
        cost = self._footprint.cost()
        self._add("agent", cost.own_cpu_s, self._metrics.cpu.labels("agent").inc)
        self._add("children", cost.children_cpu_s, self._metrics.cpu.labels("children").inc)
        if cost.own_bytes is not None:
            self._metrics.resident.labels("agent").set(cost.own_bytes)
        if cost.children_bytes is not None:
            self._metrics.resident.labels("children").set(cost.children_bytes)
        for name, parent in self._parents.items():
            self._add(f"starts of {name}", parent.starts, self._metrics.starts.labels(name).inc)

    def _add(self, name: str, total: float, inc: Callable[[float], None]) -> None:
        """What a total has grown by since it was last shown."""
        grown = total - self._shown.get(name, 0.0)
        if grown > 0:
            self._shown[name] = total
            inc(grown)
