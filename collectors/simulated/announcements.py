"""What a node announces beside samples: its inventory, and events at their times.

To let a fault announce an event: one line in `EVENTS`.
"""

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from collectors.simulated.fault import Fault
from collectors.simulated.faults import SWAPS
from collectors.simulated.fleet import Fleet
from collectors.simulated.group import generation_at
from collectors.simulated.noise import key
from collectors.simulated.silicon import gpu_uuid
from telemetry.records import Event, GpuInventory, NodeInventory

CHANGES_INVENTORY = frozenset({"fallen_off_bus", "silent_loss", "fabric_fault", "power_cap", *SWAPS})
EVENTS: Mapping[str, tuple[tuple[str, int, str], ...]] = MappingProxyType(
    {
        # kind of fault: kind of event, code, detail
        "ecc_uncorrected": (("xid", 48, "Double bit ECC error"),),
        "row_remap_pending": (("xid", 63, "Row remapping recorded"),),
        "row_remap_failed": (("xid", 64, "Row remapping failed"),),
        "fallen_off_bus": (("xid", 79, "GPU has fallen off the bus"), ("gpu_lost", 0, "GPU is lost")),
        "fabric_fault": (("fabric_fault", 0, "NVLink fabric: degraded bandwidth"),),
    }
)


class Announcer:
    """Inventory and events of a fleet's nodes."""

    def __init__(self, fleet: Fleet, *, seed: int, start_ns: int, interval_s: float) -> None:
        self._fleet = fleet
        self._seed = seed
        self._start_ns = start_ns
        self._interval_s = interval_s
        self._by_node: dict[int, list[Fault]] = {}
        for fault in fleet.faults:
            for node in dict.fromkeys(node for node, _ in fault.targets):
                self._by_node.setdefault(node, []).append(fault)

    def time_ns(self, tick: int) -> int:
        """Event time of a tick."""
        return self._start_ns + tick * round(self._interval_s * 1e9)

    def uuids(self, node: int, tick: int) -> tuple[str, ...]:
        """The UUIDs in a node's slots at a tick, present or not."""
        there = self._fleet.nodes[node]
        swapped = any(fault.kind == "gpu_swap" for fault in self._by_node.get(node, ()))
        return tuple(
            gpu_uuid(
                self._seed,
                there.name,
                slot,
                generation_at(self._fleet, (there.name, slot), tick, self._interval_s) if swapped else 0,
            )
            for slot in range(there.gpus)
        )

    def changes(self, node: int, first: int, stop: int) -> list[int]:
        """Ticks in a range at which the node's inventory changes; tick 0 is always one."""
        ticks = {0} if first == 0 else set()
        for fault in self._by_node.get(node, ()):
            if fault.kind in CHANGES_INVENTORY:
                start, end = fault.ticks(self._interval_s)
                # A reload and a swap show when the node is back.
                back = start + math.ceil(fault.size / self._interval_s) if fault.kind in SWAPS else start
                ticks.update(tick for tick in (back, end) if tick is not None and first <= tick < stop)
        return sorted(ticks)

    def inventory(self, node: int, tick: int) -> NodeInventory:
        """What the node says of itself at a tick."""
        there = self._fleet.nodes[node]
        active = [(fault, fault.ticks(self._interval_s)) for fault in self._by_node.get(node, ())]
        now = [fault for fault, (start, end) in active if start <= tick and (end is None or tick < end)]
        gone = {
            slot
            for fault in now
            if fault.kind in ("fallen_off_bus", "silent_loss")
            for at, slot in fault.targets
            if at == node
        }
        limits = {
            slot: fault.size for fault in now if fault.kind == "power_cap" for at, slot in fault.targets if at == node
        }
        fabric = None if any(fault.kind == "fabric_fault" for fault in now) else there.fabric
        model = there.model
        gpus = tuple(
            GpuInventory(
                gpu_uuid=uuid,
                slot=slot,
                bus_id=f"00000000:{0x10 + 0x11 * slot & 0xFF:02x}:00.0",
                model=model.product,
                serial=str(1_320_000_000_000 + key(uuid) % 10**9),
                driver_version=model.driver_version,
                memory_total_bytes=model.memory_bytes,
                power_limit_w=model.power_limit_w * limits.get(slot, 1.0),
                power_limit_default_w=model.power_limit_w,
                max_sm_clock_mhz=model.max_sm_clock_mhz,
                max_memory_clock_mhz=model.memory_clock_mhz,
                mig_enabled=False,
                fabric=fabric,
            )
            for slot, uuid in enumerate(self.uuids(node, tick))
            if slot not in gone
        )
        return NodeInventory(
            node=there.name,
            seen_ns=self.time_ns(tick),
            gpus=gpus,
            expected_gpus=there.gpus,
            driver_version=model.driver_version,
            place=there.place,
        )

    def events(self, own: frozenset[int], first: int, stop: int) -> Iterator[Event]:
        """Events of these nodes in a range of ticks, fault by fault."""
        for fault in self._fleet.faults:
            start, end = fault.ticks(self._interval_s)
            if first <= start < stop:
                yield from self._started(fault, own, start)
            if end is not None and first <= end < stop and fault.kind in ("ecc_uncorrected", "row_remap_pending"):
                for node, uuid in self._targets(fault, own, end):
                    yield self._event(end, node, uuid, "gpu_reset", 0, "GPU reset")
            back = start + math.ceil(fault.size / self._interval_s) if fault.kind in SWAPS else -1
            if first <= back < stop:
                yield from self._returned(fault, own, back)

    def _started(self, fault: Fault, own: frozenset[int], tick: int) -> Iterator[Event]:
        if fault.kind == "xid":
            for node, uuid in self._targets(fault, own, tick):
                yield self._event(tick, node, uuid, "xid", int(fault.size), f"Xid {int(fault.size)}")
        for kind, code, detail in EVENTS.get(fault.kind, ()):
            if kind == "fabric_fault":
                for node in sorted({node for node, _ in fault.targets} & own):
                    yield self._event(tick, node, "", kind, code, detail)
            else:
                for node, uuid in self._targets(fault, own, tick):
                    yield self._event(tick, node, uuid, kind, code, detail)

    def _returned(self, fault: Fault, own: frozenset[int], tick: int) -> Iterator[Event]:
        for node in sorted({node for node, _ in fault.targets} & own):
            yield self._event(tick, node, "", "driver_reload", 0, "Driver loaded again")
        if fault.kind == "gpu_swap":
            for node, uuid in self._targets(fault, own, tick):
                yield self._event(tick, node, uuid, "new_gpu", 0, "New GPU in the slot")

    def _targets(self, fault: Fault, own: frozenset[int], tick: int) -> Iterator[tuple[int, str]]:
        for node, slot in fault.targets:
            if node in own:
                yield node, self.uuids(node, tick)[slot]

    def _event(self, tick: int, node: int, uuid: str, kind: str, code: int, detail: str) -> Event:
        return Event(
            time_ns=self.time_ns(tick),
            node=self._fleet.nodes[node].name,
            gpu_uuid=uuid,
            kind=kind,
            code=code,
            detail=detail,
        )
