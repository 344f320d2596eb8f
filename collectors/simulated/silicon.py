"""What each single GPU is like: its voltage, leakage, cooling, and how fast it is at equal clock.

To vary another property: one array here, drawn from the GPU's own key so that neither sharding nor order matters.
"""

import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from collectors.simulated.models import GpuModel
from collectors.simulated.nodes import Node
from collectors.simulated.noise import digest, key, normals, uniform

Floats = NDArray[np.float64]
INLET_C = 25.0  #: of the typical GPU, to which models are calibrated
LEAKAGE_PER_C = 0.02  #: growth of leakage with temperature, around the idle temperature
LEAKAGE_AT_C = 35.0
REGULATED = 0.99  #: the governor holds power a per cent below the limit: 297 W of 300 W on Longhorn's V100s
SQUARE, QUARTIC = 0.6, 0.4  #: dynamic power = SQUARE x^2 + QUARTIC x^4 for a clock of x: elasticity 2 to 2.8


@dataclass(slots=True, kw_only=True)
class Silicon:
    """Arrays with one value a GPU; clocks are shares of the model's highest."""

    key: NDArray[np.uint64]
    limit_w: Floats
    regulated: Floats  #: share of the limit at which the governor holds power
    leak_w: Floats  #: static power at LEAKAGE_AT_C
    dynamic_w: Floats  #: dynamic power at the highest clock and full compute load
    resistance: Floats  #: C per W
    time_constant_s: Floats
    settle: Floats  #: share of the way to thermal balance that one tick goes
    inlet_c: Floats
    daily_cos_c: Floats
    daily_sin_c: Floats
    load_share: Floats
    idle_share: Floats
    step_share: Floats
    sw_thermal_c: Floats
    hw_thermal_c: Floats
    max_clock_mhz: Floats
    memory_clock_mhz: NDArray[np.uint16]
    memory_bytes: Floats
    memory_heat_c: Floats
    nvlink_bytes_per_s: Floats
    pcie_bytes_per_s: Floats
    pcie_gen: NDArray[np.uint8]
    compute_factor: Floats
    memory_factor: Floats
    link_factor: Floats

    def take(self, rows: NDArray[np.intp]) -> "Silicon":
        """The same for some of the GPUs."""
        return Silicon(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    def put(self, rows: NDArray[np.intp], other: "Silicon") -> None:
        """Replace some of the GPUs: a swap."""
        for field in fields(self):
            getattr(self, field.name)[rows] = getattr(other, field.name)


def gpu_uuid(seed: int, node: str, slot: int, generation: int = 0) -> str:
    """The UUID of the GPU in a slot; `generation` counts swaps."""
    return f"GPU-{uuid.UUID(bytes=digest(seed, 'uuid', node, slot, generation))}"


def draw(
    nodes: Sequence[Node],
    *,
    seed: int,
    interval_s: float,
    node_spread_c: float,
    generations: Mapping[tuple[str, int], int] | None = None,
) -> Silicon:
    """The GPUs of these nodes, in order of node and slot; `generations` counts the swaps by (node, slot)."""
    swaps = generations or {}
    keys = np.array(
        [
            key(seed, "gpu", node.name, slot, swaps.get((node.name, slot), 0))
            for node in nodes
            for slot in range(node.gpus)
        ],
        dtype=np.uint64,
    )
    counts = np.array([node.gpus for node in nodes])

    def per(value: Callable[[Node], float]) -> Floats:
        return np.repeat(np.array([value(node) for node in nodes], dtype=np.float64), counts)

    def spread(name: str, share: Floats) -> Floats:
        return np.clip(1.0 + share * normals(keys, name), 0.5, 1.6)

    resistance = per(lambda node: _resistance(node.model)) * spread("cooling", per(lambda n: n.model.resistance_spread))
    badly_seated = uniform(keys, np.zeros(1, dtype=np.uint64), 7)[:, 0] < per(lambda node: node.model.hot_share)
    resistance[badly_seated] *= 1.35
    node_keys = np.array([key(seed, "node", node.name) for node in nodes], dtype=np.uint64)
    slots = np.array([_slot_offset(node.model, slot) for node in nodes for slot in range(node.gpus)])
    max_clock = per(lambda node: node.model.max_sm_clock_mhz)
    return Silicon(
        key=keys,
        limit_w=per(lambda node: node.model.power_limit_w),
        regulated=REGULATED * (1.0 + 0.002 * normals(keys, "regulated")),
        leak_w=per(lambda node: node.model.idle_power_w) * spread("leakage", per(lambda n: n.model.leakage_spread)),
        dynamic_w=per(lambda node: _dynamic_w(node.model)) * spread("voltage", per(lambda n: n.model.voltage_spread)),
        resistance=resistance,
        time_constant_s=per(lambda node: node.model.time_constant_s),
        settle=per(lambda node: -math.expm1(-interval_s / node.model.time_constant_s)),
        inlet_c=per(lambda node: node.inlet_c) + np.repeat(normals(node_keys, "inlet") * node_spread_c, counts) + slots,
        daily_cos_c=per(lambda node: node.daily_c * math.cos(node.peak_hour * math.pi / 12)),
        daily_sin_c=per(lambda node: node.daily_c * math.sin(node.peak_hour * math.pi / 12)),
        load_share=per(lambda node: node.model.load_clock_share),
        idle_share=per(lambda node: node.model.idle_sm_clock_mhz) / max_clock,
        step_share=per(lambda node: node.model.clock_step_mhz) / max_clock,
        sw_thermal_c=per(lambda node: node.model.sw_thermal_c),
        hw_thermal_c=per(lambda node: node.model.hw_thermal_c),
        max_clock_mhz=max_clock,
        memory_clock_mhz=per(lambda node: node.model.memory_clock_mhz).astype(np.uint16),
        memory_bytes=per(lambda node: node.model.memory_bytes),
        memory_heat_c=per(lambda node: node.model.memory_heat_c),
        nvlink_bytes_per_s=per(lambda node: node.model.nvlink_bytes_per_s),
        pcie_bytes_per_s=per(lambda node: node.model.pcie_bytes_per_s),
        pcie_gen=per(lambda node: node.model.pcie_gen).astype(np.uint8),
        compute_factor=1.0 + 0.0010 * normals(keys, "compute"),
        memory_factor=1.0 + 0.0040 * normals(keys, "memory"),
        link_factor=1.0 + 0.0030 * normals(keys, "link"),
    )


def _slot_offset(model: GpuModel, slot: int) -> float:
    return model.slot_offsets_c[slot % len(model.slot_offsets_c)]


def _resistance(model: GpuModel) -> float:
    return (model.load_temperature_c - INLET_C) / (REGULATED * model.power_limit_w)


def _dynamic_w(model: GpuModel) -> float:
    """What makes the typical GPU draw its limit at its typical load clock and temperature."""
    static_w = model.idle_power_w * (1 + LEAKAGE_PER_C * (model.load_temperature_c - LEAKAGE_AT_C))
    square = model.load_clock_share**2
    return (REGULATED * model.power_limit_w - static_w) / (SQUARE * square + QUARTIC * square**2)
