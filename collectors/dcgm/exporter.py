"""One target: its pages parsed, told apart by node, and what is known of its trouble.

To treat another kind of trouble: `Exporter.failed`.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from collectors import Reading
from collectors.dcgm.exposition import MAX_LINES, MAX_SETS, Page, Parser, Series
from collectors.dcgm.fields import READ
from collectors.dcgm.labels import Labels, read_labels
from collectors.dcgm.node import Node
from collectors.dcgm.targets import Target
from telemetry.errors import BadInput
from telemetry.records import Event

log = logging.getLogger(__name__)

MAX_BYTES = 8 << 20
FEDERATED = 32  #: a Prometheus may answer for as many times what an exporter may
MAX_NODES = 16  #: node names of one exporter: behind one address there may be several
QUIET_S = 300.0
OWNED_TICKS = 10  #: a GPU or name that its exporter has not shown for so long may be another's


class Claims:
    """Which exporter shows which GPU, and which name is whose: a target listed twice must not be two nodes."""

    def __init__(self, *, keep_s: float) -> None:
        self._keep_s = keep_s
        self._owners: dict[str, tuple[str, float]] = {}

    def free(self, thing: str, owner: str, *, now: float) -> bool:
        """Whether it is this owner's, who now has it."""
        holder, since = self._owners.get(thing, (owner, now))
        if holder != owner and now - since < self._keep_s:
            return False
        self._owners[thing] = (owner, now)
        return True

    def forget(self, *, now: float) -> None:
        """Let go of what nobody has shown for long."""
        self._owners = {k: v for k, v in self._owners.items() if now - v[1] < self._keep_s}


class Exporter:
    """What is known of one target. Belongs to the thread of the scraper."""

    def __init__(self, target: Target, *, interval_s: float, claims: Claims, fallback_node: str) -> None:
        self.target = target
        self.failures = 0
        self.where = target.address.host_header
        self._interval_s = interval_s
        self._claims = claims
        self._fallback = fallback_node
        self._times = FEDERATED if target.federated else 1
        self._parser = Parser(
            names=READ, reader=read_labels, max_lines=MAX_LINES * self._times, max_sets=MAX_SETS * self._times
        )
        self._nodes: dict[str, Node] = {}
        self._told_at: float | None = None
        self._damage: set[str] = set()

    @property
    def max_bytes(self) -> int:
        """What a page of it may have."""
        return MAX_BYTES * self._times

    @property
    def gpus(self) -> int:
        """GPUs that its last page showed."""
        return sum(node.gpus for node in self._nodes.values())

    def read(self, body: bytes, *, time_ns: int, now: float) -> list[Reading]:
        """A reading of each node of the page. Raises BadInput for a page of which nothing can be used."""
        page = self._parser.parse(body.decode("utf-8", errors="replace"))
        if not page.series:
            raise BadInput("no_gpus", self._emptiness(page))
        self._tell_damage(page)
        damaged = bool(page.rejected)
        by_node: dict[str, list[Series[Labels]]] = {}
        for one in page.series:
            by_node.setdefault(self._name(one.labels), []).append(one)
        if len(by_node) > MAX_NODES * self._times * self._times:
            raise BadInput("too_many_nodes", f"{len(by_node)} nodes in one page")
        found = [Reading(rejected=dict(page.rejected))] if page.rejected else []
        for name, series in by_node.items():
            found += self._read_node(name, series, time_ns=time_ns, now=now, damaged=damaged)
        self.failures = 0
        if self._told_at is not None:
            log.info("dcgm: %s answers again", self.where)
            self._told_at = None
        return found

    def failed(self, reason: str, detail: str, *, time_ns: int, now: float) -> Reading:
        """A scrape that gave nothing: counted; told when it is the second one in a row."""
        self.failures += 1
        events: tuple[Event, ...] = ()
        if self.failures >= 2 and (self._told_at is None or now - self._told_at >= QUIET_S) and not self._told():
            self._told_at = now
            text = f"dcgm: {self.where}: {detail}"
            log.warning("%s", text)
            name = next(iter(self._nodes), self.target.node or self._fallback)
            event = Event(time_ns=time_ns, node=name, gpu_uuid="", kind="collector_failed", detail=text[:500])
            events = (event,)
        return Reading(events=events, rejected={f"scrape:{reason}": 1})

    def _told(self) -> bool:
        return self._told_at is not None and self.failures > 2

    def _name(self, labels: Labels) -> str:
        return self.target.node or labels.node or self.target.address.host

    def _read_node(
        self, name: str, series: Sequence[Series[Labels]], *, time_ns: int, now: float, damaged: bool
    ) -> list[Reading]:
        me = f"{self.target.url} {name}"
        taken = frozenset(key for key in {one.labels.key for one in series} if not self._claims.free(key, me, now=now))
        rejected: Counter[str] = Counter()
        if all(one.labels.key in taken for one in series):
            rejected["gpu:repeated_uuid"] += len(taken)
            return [Reading(rejected=dict(rejected))]
        shown = name
        if not self._claims.free(f"node {name}", me, now=now):
            shown = f"{name}@{self.where}"  # another exporter has this name and other GPUs
            rejected["node:repeated_name"] += 1
            if shown not in self._nodes:
                log.warning(
                    "dcgm: %s and another exporter say that they are %s: this one is %s", self.where, name, shown
                )
        node = self._nodes.get(shown)
        if node is None:
            if len(self._nodes) >= MAX_NODES * self._times * self._times:
                self._nodes.pop(next(iter(self._nodes)))
            node = self._nodes[shown] = Node(shown, interval_s=self._interval_s)
        reading = node.read(series, time_ns=time_ns, now=now, damaged=damaged, taken=taken)
        return [replace(reading, rejected=dict(Counter(reading.rejected) + rejected))]

    def _emptiness(self, page: Page[Labels]) -> str:
        if page.rejected:
            return f"no usable series: {', '.join(sorted(page.rejected))}, first in line {page.first_bad}"
        return "no series of a GPU: is this dcgm-exporter's /metrics, and does it see GPUs?"

    def _tell_damage(self, page: Page[Labels]) -> None:
        for reason in page.rejected.keys() - self._damage:
            self._damage.add(reason)
            line = f", first in line {page.first_bad}" if page.first_bad else ""
            log.warning("dcgm: %s: %s%s (said once, counted always)", self.where, reason, line)
