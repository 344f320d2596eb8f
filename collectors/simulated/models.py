"""GPU models that a simulated fleet can be made of: clocks, power, heat, links, and which metrics they report.

To add a model: one entry in `MODELS`, or `models:` in a fleet description. Clocks, limits, memory sizes, idle figures
and thresholds are what `nvidia-smi -q` of that product shows; load clock, load temperature and spreads are calibrated.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from collectors.simulated.section import Section
from telemetry.metrics import SAMPLED

GIB = 2**30
GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        name: tuple(text.split())
        for name, text in {
            "core": "sm_clock_mhz memory_clock_mhz temperature_c power_w power_limit_w utilization_ratio "
            "memory_utilization_ratio clock_event_reasons performance_state memory_used_bytes energy_mj "
            "ecc_corrected_total ecc_uncorrected_total pcie_replay_total pcie_link_gen pcie_link_width",
            "reason_times": "sw_power_cap_ns sw_thermal_ns hw_thermal_ns hw_power_brake_ns",
            "violations": "power_violation_ns thermal_violation_ns",
            "memory_temperature": "memory_temperature_c",
            "margin": "temperature_margin_c",
            "instant_power": "power_instant_w",
            "row_remap": "remapped_rows_corrected_total remapped_rows_uncorrected_total row_remap_pending "
            "row_remap_failed",
            "nvlink_errors": "nvlink_crc_errors_total nvlink_replay_errors_total nvlink_recovery_errors_total",
            "nvlink5_errors": "nvlink_symbol_errors_total",
            "activity": "graphics_engine_active_ratio sm_active_ratio sm_occupancy_ratio tensor_active_ratio "
            "dram_active_ratio fp64_active_ratio fp32_active_ratio fp16_active_ratio",
            "traffic": "pcie_tx_bytes_per_s pcie_rx_bytes_per_s nvlink_tx_bytes_per_s nvlink_rx_bytes_per_s",
            "cycles": "sm_cycles_elapsed_total",
            "fabric": "fabric_health_mask",
            "recovery": "recovery_action",
        }.items()
    }
)
"""Names for sets of metrics that come and go together."""

_BEFORE_HOPPER = ("core", "violations", "nvlink_errors", "activity", "traffic")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """One product. `load_clock_share` and `load_temperature_c` are the typical GPU's at full compute load, under its
    power limit, with 25 C at the inlet; `slot_offsets_c` repeats over the slots of a node.

    Spreads are standard deviations relative to the typical GPU; `hot_share` of the GPUs have badly seated coolers.
    """

    name: str
    product: str
    memory_bytes: int
    power_limit_w: float
    idle_power_w: float
    max_sm_clock_mhz: int
    clock_step_mhz: float = 15.0
    idle_sm_clock_mhz: int
    memory_clock_mhz: int
    load_clock_share: float
    load_temperature_c: float
    sw_thermal_c: float
    hw_thermal_c: float
    memory_heat_c: float = 8.0  #: HBM above the die at full memory load
    time_constant_s: float = 25.0
    slot_offsets_c: tuple[float, ...] = (0.0,)
    pcie_gen: int = 4
    pcie_bytes_per_s: float = 25e9
    nvlink_bytes_per_s: float = 0.0
    voltage_spread: float = 0.032
    leakage_spread: float = 0.08
    resistance_spread: float = 0.10
    hot_share: float = 0.0
    driver_version: str = "580.105.08"
    metrics: tuple[str, ...] = ()


def metric_names(words: tuple[str, ...]) -> tuple[str, ...]:
    """Metrics in wire order from names of groups and of single metrics; raises KeyError for a word that is neither."""
    known = {metric.name for metric in SAMPLED}
    names: set[str] = set()
    for word in words:
        if word not in known and word not in GROUPS:
            raise KeyError(word)
        names.update(GROUPS.get(word, (word,)))
    return tuple(metric.name for metric in SAMPLED if metric.name in names)


_A100 = GpuModel(
    name="A100-SXM4-40GB",
    product="NVIDIA A100-SXM4-40GB",
    memory_bytes=40 * GIB,
    power_limit_w=400.0,
    idle_power_w=50.0,
    max_sm_clock_mhz=1410,
    idle_sm_clock_mhz=210,
    memory_clock_mhz=1215,
    load_clock_share=0.92,
    load_temperature_c=62.0,
    sw_thermal_c=85.0,
    hw_thermal_c=89.0,
    nvlink_bytes_per_s=300e9,
    # In a healthy node some slots sit in the warm air of others: 6 C at 400 W on Azure's nodes.
    slot_offsets_c=(0.0, 0.0, 5.0, 5.0, 0.0, 0.0, 5.0, 5.0),
    driver_version="570.148.08",
    metrics=metric_names((*_BEFORE_HOPPER, "memory_temperature", "row_remap")),
)
_H100 = GpuModel(
    name="H100-SXM5-80GB",
    product="NVIDIA H100 80GB HBM3",
    memory_bytes=80 * GIB,
    power_limit_w=700.0,
    idle_power_w=70.0,
    max_sm_clock_mhz=1980,
    idle_sm_clock_mhz=345,
    memory_clock_mhz=2619,
    load_clock_share=0.80,
    load_temperature_c=56.0,
    sw_thermal_c=85.0,
    hw_thermal_c=87.0,
    pcie_gen=5,
    pcie_bytes_per_s=50e9,
    nvlink_bytes_per_s=450e9,
    # 14 C inside a healthy eight-GPU node.
    slot_offsets_c=(0.0, 14.0, -1.0, 13.0, 0.0, 12.0, -1.0, 11.0),
    metrics=metric_names(
        (
            "core",
            "reason_times",
            "memory_temperature",
            "margin",
            "instant_power",
            "row_remap",
            "nvlink_errors",
            "activity",
            "traffic",
            "cycles",
            "recovery",
        )
    ),
)

MODELS: Mapping[str, GpuModel] = MappingProxyType(
    {
        model.name: model
        for model in (
            GpuModel(
                name="V100-SXM2-16GB",
                product="Tesla V100-SXM2-16GB",
                memory_bytes=16 * GIB,
                power_limit_w=300.0,
                idle_power_w=40.0,
                max_sm_clock_mhz=1530,
                clock_step_mhz=7.5,
                idle_sm_clock_mhz=135,
                memory_clock_mhz=877,
                load_clock_share=1365 / 1530,
                load_temperature_c=65.0,
                sw_thermal_c=83.0,
                hw_thermal_c=90.0,
                pcie_gen=3,
                pcie_bytes_per_s=13e9,
                nvlink_bytes_per_s=75e9,
                driver_version="535.183.06",
                metrics=metric_names(_BEFORE_HOPPER),
            ),
            _A100,
            replace(
                _A100,
                name="A100-SXM4-80GB",
                product="NVIDIA A100-SXM4-80GB",
                memory_bytes=80 * GIB,
                memory_clock_mhz=1593,
            ),
            _H100,
            replace(
                _H100,
                name="GB200",
                product="NVIDIA GB200",
                memory_bytes=189_471 * 2**20,
                power_limit_w=1200.0,
                idle_power_w=165.0,
                max_sm_clock_mhz=2062,
                idle_sm_clock_mhz=120,
                memory_clock_mhz=3996,
                load_clock_share=0.88,
                load_temperature_c=55.0,
                slot_offsets_c=(0.0, 1.0, 0.0, 1.0),
                nvlink_bytes_per_s=900e9,
                driver_version="580.173.02",
                metrics=tuple(
                    name
                    for name in metric_names((*_H100.metrics, "nvlink5_errors", "fabric"))
                    if name not in GROUPS["nvlink_errors"]
                ),
            ),
        )
    }
)
"""Every built-in model by the name that fleet descriptions use."""


_NUMBERS = (
    "power_limit_w",
    "idle_power_w",
    "clock_step_mhz",
    "load_clock_share",
    "load_temperature_c",
    "sw_thermal_c",
    "hw_thermal_c",
    "memory_heat_c",
    "time_constant_s",
    "pcie_bytes_per_s",
    "nvlink_bytes_per_s",
    "voltage_spread",
    "leakage_spread",
    "resistance_spread",
    "hot_share",
)
_INTEGERS = (
    ("memory_bytes", 2**44),
    ("max_sm_clock_mhz", 5_000),
    ("idle_sm_clock_mhz", 5_000),
    ("memory_clock_mhz", 20_000),
    ("pcie_gen", 10),
)


def read_model(name: str, section: Section) -> GpuModel:
    """A model of the fleet's own: `base` names a built-in one, every other field replaces that of the base."""
    base = section.choice("base", _H100.name, tuple(MODELS))
    model = MODELS[base]
    changed: dict[str, Any] = {
        field: section.number(field, getattr(model, field), low=0.0, high=1e13) for field in _NUMBERS
    }
    for field, high in _INTEGERS:
        changed[field] = section.integer(field, getattr(model, field), low=1, high=high)
    made = replace(
        model,
        name=name,
        product=section.text("product", model.product),
        driver_version=section.text("driver_version", model.driver_version),
        slot_offsets_c=section.numbers("slot_offsets_c", model.slot_offsets_c),
        metrics=read_metrics(section, model.metrics),
        **changed,
    )
    for field in ("power_limit_w", "clock_step_mhz", "time_constant_s", "load_clock_share"):
        if getattr(made, field) <= 0:
            raise section.refuse(field, "must be above 0")
    if made.load_clock_share > 1 or made.idle_sm_clock_mhz > made.max_sm_clock_mhz:
        raise section.refuse("load_clock_share", "load and idle clocks must not be above the highest clock")
    if made.idle_power_w >= 0.5 * made.power_limit_w:
        raise section.refuse("idle_power_w", "must be below half of power_limit_w")
    if not made.slot_offsets_c:
        raise section.refuse("slot_offsets_c", "must have at least one value")
    section.done()
    return made


def read_metrics(section: Section, default: tuple[str, ...]) -> tuple[str, ...]:
    """The metrics in the field `metrics` (groups or names), else the default, less those in `without`."""
    try:
        words = section.texts("metrics")
        names = default if words is None else metric_names(words)
        without = set(metric_names(section.texts("without") or ()))
    except KeyError as error:
        raise section.refuse("metrics", f"no metric or group of metrics {error}; groups: {', '.join(GROUPS)}") from None
    return tuple(name for name in names if name not in without)
