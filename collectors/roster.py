"""The roster: which GPUs a node has, from one listing to the next; inventory when it changed, events for what happened.

To report another kind of change: one method that compares a listing with the last one, called in `update`.
"""

import logging
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from collectors.listing import ListedGpu, Listing
from telemetry.metrics import SAMPLED, Kind
from telemetry.records import Event, GpuInventory, NodeInventory

log = logging.getLogger(__name__)

_UUID_TEXT = re.compile(r"[A-Za-z0-9][\w.:/-]{0,95}", re.ASCII)
# A capture whose UUIDs were scrubbed counts its GPUs: GPU-00000003-0000-0000-0000-000000000003.
_PLACEHOLDER = re.compile(r"GPU-0{4}([0-9a-f]{4})-0{4}-0{4}-0{4}-0{8}([0-9a-f]{4})", re.ASCII | re.IGNORECASE)
_NO_CLUSTER = re.compile(r"[0-]*")
# Counters that begin anew with the driver; remapped rows live in the board's memory and PCIe replays in the link.
_COUNTERS = tuple(
    metric.name
    for metric in SAMPLED
    if metric.kind is Kind.COUNTER and not metric.name.startswith(("remapped_rows", "pcie_replay"))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What a listing says: the GPUs that answered by gpu_uuid, inventory if it is new, events, unusable entries.

    `replaced`: gpu_uuid of those in whose slots others are now.
    """

    answered: Mapping[str, ListedGpu]
    inventory: NodeInventory | None
    events: Sequence[Event]
    rejected: Mapping[str, int]
    replaced: Sequence[str] = ()


def is_placeholder(text: str) -> bool:
    """Whether a UUID is only a scrubbed capture's counter: the same on every node, hence no identity."""
    match = _PLACEHOLDER.fullmatch(text)
    return match is not None and match[1] == match[2]


def derived_uuid(*names: str) -> str:
    """A GPU identity made from names (node, then UUID or bus id): always the same for the same names."""
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, '/'.join(('isotach', *names)))}"


def fabric_of(gpu: ListedGpu) -> str | None:
    """The NVLink domain, `<clusterUuid>.<cliqueId>`; None unless the fabric is complete, successful and has a UUID."""
    cluster, clique = gpu.statics.get("fabric_cluster_uuid"), gpu.statics.get("fabric_clique_id")
    if gpu.fabric_state != "Completed" or gpu.fabric_status != "Success" or cluster is None or clique is None:
        return None
    return None if _NO_CLUSTER.fullmatch(str(cluster)) else f"{cluster}.{clique}"


def fabric_fault(gpu: ListedGpu) -> str | None:
    """What is wrong with the NVLink fabric; None if nothing is, or if there is no such fabric."""
    if gpu.fabric_state == "Completed" and gpu.fabric_status not in (None, "Success"):
        return f"fabric state Completed, status {gpu.fabric_status}"
    if gpu.statics.get("fabric_health_summary") == "Unhealthy":
        return "fabric health Unhealthy"
    return None


class Roster:
    """The GPUs of one node over time. Every event is told once, when its state begins."""

    def __init__(self, *, node: str, expected_gpus: int | None, place: Sequence[tuple[str, str]]) -> None:
        self._node = node
        self._expected = expected_gpus
        self._place = tuple(place)
        self._known: dict[str, str | None] = {}  # gpu_uuid -> bus id, in order of appearance
        self._slots: dict[str, int] = {}  # bus id -> slot
        self._absent: dict[str, str] = {}  # gpu_uuid -> the kind of event that told of it
        self._faults: dict[str, str] = {}
        self._driver: str | None = None
        self._shown: dict[str, ListedGpu] = {}  # as last seen: one that keeps us waiting stays in the inventory
        self._counters: dict[str, dict[str, int | float]] = {}
        self._short = 0
        self._last: NodeInventory | None = None

    @property
    def buses(self) -> tuple[str, ...]:
        """Bus ids of every GPU ever listed."""
        return tuple(bus for bus in self._known.values() if bus is not None)

    def update(self, listing: Listing, *, time_ns: int) -> Changes:
        """Compare with the last listing and remember this one."""
        gpus, rejected = self._identify(listing)
        answered = {name: gpu for name, gpu in gpus.items() if gpu.answered}
        self._shown |= answered
        waiting = {
            name: self._shown[name]
            for name, bus in self._known.items()
            if (bus in listing.waiting or not listing.complete)
            and name in self._shown.keys() - gpus.keys() - self._absent.keys()
        }
        before = set(self._known)
        events = [
            *self._swaps(gpus, time_ns),
            *self._losses(gpus, listing, time_ns),
            *self._shortage(len(answered) + len(waiting), time_ns),
            *self._reloads(answered, time_ns),
            *self._fabric_faults(answered, time_ns),
        ]
        here = waiting | answered
        inventory = self._inventory({name: here[name] for name in self._known if name in here}, time_ns)
        return Changes(
            answered=answered,
            inventory=inventory,
            events=events,
            rejected=rejected,
            replaced=sorted(before - self._known.keys()),
        )

    def _event(self, time_ns: int, gpu_uuid: str, kind: str, detail: str) -> Event:
        log.warning("%s: %s %s: %s", self._node, kind, gpu_uuid, detail)
        return Event(time_ns=time_ns, node=self._node, gpu_uuid=gpu_uuid, kind=kind, detail=detail)

    def _identify(self, listing: Listing) -> tuple[dict[str, ListedGpu], dict[str, int]]:
        """Every GPU under its identity: its UUID, else the last one seen at its bus id, else one made of that."""
        at_bus = {bus: name for name, bus in self._known.items() if bus is not None}
        gpus: dict[str, ListedGpu] = {}
        rejected: dict[str, int] = dict(listing.broken)
        for gpu in listing.gpus:
            name = gpu.uuid
            if name is not None and (is_placeholder(name) or not _UUID_TEXT.fullmatch(name)):
                name = derived_uuid(self._node, name)
            if name is None and gpu.bus_id is not None:
                name = at_bus.get(gpu.bus_id) or (None if gpu.lost else derived_uuid(self._node, gpu.bus_id))
            if name in gpus and gpu.bus_id is not None:
                rejected["gpu:repeated_uuid"] = rejected.get("gpu:repeated_uuid", 0) + 1
                name = derived_uuid(self._node, name or "", gpu.bus_id)
            if name is None or name in gpus:
                rejected["gpu:no_identity"] = rejected.get("gpu:no_identity", 0) + 1
                continue
            gpus[name] = gpu
        return gpus, rejected

    def _swaps(self, gpus: Mapping[str, ListedGpu], time_ns: int) -> list[Event]:
        """Another UUID where one was before: the old GPU leaves the roster, baselines of the new one start anew."""
        events = []
        at_bus = {bus: name for name, bus in self._known.items() if bus is not None}
        for name, gpu in gpus.items():
            before = at_bus.get(gpu.bus_id or "")
            if before is not None and before != name and before not in gpus:
                del self._known[before]
                self._absent.pop(before, None)
                self._faults.pop(before, None)
                self._counters.pop(before, None)
                self._shown.pop(before, None)
                events.append(self._event(time_ns, name, "new_gpu", f"at {gpu.bus_id}, where {before} was"))
            self._known[name] = gpu.bus_id or self._known.get(name)
        return events

    def _losses(self, gpus: Mapping[str, ListedGpu], listing: Listing, time_ns: int) -> list[Event]:
        """GPUs that the driver calls lost, has no handle for, or does not list any more."""
        lost: dict[str, tuple[str, str]] = {}
        for name, gpu in gpus.items():
            if gpu.lost is not None:
                lost[name] = ("gpu_lost", gpu.lost)
            elif not gpu.answered:
                lost[name] = ("missing_gpu", "listed, but gives no value")
        for name, bus in self._known.items():
            if name in gpus or bus in listing.waiting:
                continue
            if bus in listing.lost:
                lost[name] = ("gpu_lost", listing.lost[bus or ""])
            elif listing.complete:
                lost[name] = ("gpu_lost", f"at {bus}: no longer listed")
        events = [
            self._event(time_ns, name, kind, detail)
            for name, (kind, detail) in lost.items()
            if self._absent.get(name) not in (kind, "gpu_lost")
        ]
        back = {name for name in self._absent if name in gpus and gpus[name].answered}
        for name in sorted(back):
            log.info("%s: %s answers again", self._node, name)
        kept = {name: kind for name, kind in self._absent.items() if name not in back}
        self._absent = {name: kind for name, (kind, _) in lost.items()} | {
            name: kind for name, kind in kept.items() if name not in lost or kind == "gpu_lost"
        }
        return events

    def _shortage(self, answered: int, time_ns: int) -> list[Event]:
        """Fewer GPUs than expected; told again when still more go missing."""
        short = max(0, (self._expected or 0) - answered)
        grew, self._short = short > self._short, short
        detail = f"{answered} of {self._expected} GPUs answer"
        return [self._event(time_ns, "", "missing_gpu", detail)] if grew else []

    def _reloads(self, answered: Mapping[str, ListedGpu], time_ns: int) -> list[Event]:
        """A new driver version, or every counter of every GPU fallen back; of some GPUs only, these were reset."""
        driver = next((gpu.driver_version for gpu in answered.values() if gpu.driver_version), None)
        before, self._driver = self._driver, driver or self._driver
        fallen: list[str] = []
        steady: list[str] = []
        for name, gpu in answered.items():
            last = self._counters.get(name, {})
            now = {counter: gpu.values[counter] for counter in _COUNTERS if counter in gpu.values}
            grown = [counter for counter, value in last.items() if value > 0 and counter in now]
            if grown:
                (fallen if all(now[c] < last[c] for c in grown) else steady).append(name)
            self._counters[name] = last | now
        if before is not None and driver is not None and driver != before:
            return [self._event(time_ns, "", "driver_reload", f"driver {before} is now {driver}")]
        if fallen and not steady:
            return [self._event(time_ns, "", "driver_reload", f"all counters of {len(fallen)} GPUs fell back")]
        return [self._event(time_ns, name, "gpu_reset", "all its counters fell back") for name in fallen]

    def _fabric_faults(self, answered: Mapping[str, ListedGpu], time_ns: int) -> list[Event]:
        found = {name: fault for name, gpu in answered.items() if (fault := fabric_fault(gpu)) is not None}
        new = [name for name, fault in found.items() if self._faults.get(name) != fault]
        kept = {name: fault for name, fault in self._faults.items() if name not in answered}
        self._faults = kept | found
        return [self._event(time_ns, name, "fabric_fault", found[name]) for name in new]

    def _assign_slots(self, answered: Mapping[str, ListedGpu]) -> None:
        """Module ids where all GPUs have different ones, else PCI order; a place keeps its slot when a GPU is lost."""
        buses = {gpu.bus_id for gpu in answered.values() if gpu.bus_id is not None}
        if buses <= self._slots.keys():
            return
        modules = {gpu.bus_id: gpu.statics.get("module_id") for gpu in answered.values() if gpu.bus_id is not None}
        if len({module for module in modules.values() if isinstance(module, int)}) == len(answered):
            self._slots |= {bus: module for bus, module in modules.items() if isinstance(module, int)}
        else:
            self._slots = {bus: i for i, bus in enumerate(sorted(buses | set(self.buses)))}

    def _inventory(self, answered: Mapping[str, ListedGpu], time_ns: int) -> NodeInventory | None:
        self._assign_slots(answered)
        gpus = tuple(_inventory_of(name, gpu, self._slots.get(gpu.bus_id or "")) for name, gpu in answered.items())
        domains = {gpu.fabric for gpu in gpus if gpu.fabric is not None}
        chassis = {gpu.statics["chassis_serial"] for gpu in answered.values() if "chassis_serial" in gpu.statics}
        found = [("nvlink_domain", domain) for domain in domains if len(domains) == 1]
        found += [("chassis", str(serial)) for serial in chassis if len(chassis) == 1]
        given = {level for level, _ in self._place}
        inventory = NodeInventory(
            node=self._node,
            seen_ns=time_ns,
            gpus=gpus,
            expected_gpus=self._expected,
            driver_version=self._driver,
            place=(*(pair for pair in found if pair[0] not in given), *self._place),
        )
        if self._last is not None and inventory == replace(self._last, seen_ns=time_ns):
            return None
        self._last = inventory
        return inventory


def _inventory_of(name: str, gpu: ListedGpu, slot: int | None) -> GpuInventory:
    def integer(metric: str) -> int | None:
        value = gpu.statics.get(metric)
        return value if isinstance(value, int) else None

    def number(metric: str) -> float | None:
        value = gpu.statics.get(metric)
        return None if value is None or isinstance(value, str) else float(value)

    return GpuInventory(
        gpu_uuid=name,
        slot=slot,
        bus_id=gpu.bus_id,
        model=gpu.model,
        serial=gpu.serial,
        driver_version=gpu.driver_version,
        memory_total_bytes=integer("memory_total_bytes"),
        power_limit_w=number("power_limit_requested_w"),
        power_limit_default_w=number("power_limit_default_w"),
        max_sm_clock_mhz=integer("max_sm_clock_mhz"),
        max_memory_clock_mhz=integer("max_memory_clock_mhz"),
        mig_enabled=gpu.mig_enabled,
        fabric=fabric_of(gpu),
        numa_node=integer("numa_node"),
    )
