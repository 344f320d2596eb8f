"""The counters dcgm-exporter should show, and what each one buys: `deploy/dcgm-exporter-counters.csv` is made of it.

To ask for another field: a line in `BUYS`, under its metric's name in the catalogue or its own in `fields.EXTRA`.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType

from collectors.dcgm.fields import EXTRA, PREFIX
from telemetry.metrics import METRICS, Kind

BUYS: Mapping[str, str] = MappingProxyType(
    {
        "sm_clock_mhz": "speed from telemetry: without it only measurements rank GPUs",
        "memory_clock_mhz": "memory that runs below its clock",
        "max_sm_clock_mhz": "clocks as a share of what the model can do",
        "max_memory_clock_mhz": "the same for memory",
        "temperature_c": "cooling as a cause",
        "memory_temperature_c": "cooling of the HBM, which slows first on some models",
        "temperature_margin_c": "how close the nearest slowdown is",
        "power_w": "power cap and silicon told apart; repeats of an exporter noticed",
        "power_instant_w": "power where the model has no average",
        "power_limit_w": "a GPU with another limit than its peers",
        "power_limit_requested_w": "a limit that somebody has set",
        "power_limit_default_w": "which limit the board was made for",
        "energy_mj": "energy for a job's work; a repeat noticed for every single GPU",
        "clock_event_reasons": "the cause of low clocks, bit by bit",
        "sw_power_cap_ns": "time below the power cap, also between scrapes",
        "sync_boost_ns": "time held down by sync boost",
        "sw_thermal_ns": "time slowed for heat by software, also between scrapes",
        "hw_thermal_ns": "time slowed for heat by hardware: a fault of cooling",
        "hw_power_brake_ns": "time under the external power brake: a fault of the power supply",
        "power_violation_ns": "stands in for the counters above on older drivers",
        "thermal_violation_ns": "stands in for the counters above on older drivers",
        "utilization_ratio": "whether a GPU works at all: idle time is not compared",
        "memory_utilization_ratio": "a coarse sign of memory-bound load",
        "performance_state": "a GPU that does not leave a low state",
        "memory_used_bytes": "a GPU that holds memory without working",
        "memory_total_bytes": "a board of another size under the same name",
        "graphics_engine_active_ratio": "utilisation that also MIG nodes report, finer than the coarse counter",
        "sm_active_ratio": "how much of the GPU works",
        "sm_occupancy_ratio": "unlike programmes told apart",
        "tensor_active_ratio": "compute-bound load recognised",
        "dram_active_ratio": "memory-bound load recognised",
        "fp64_active_ratio": "unlike programmes told apart",
        "fp32_active_ratio": "unlike programmes told apart",
        "fp16_active_ratio": "unlike programmes told apart",
        "sm_cycles_elapsed_total": "the true mean clock between two scrapes instead of one moment's",
        "pcie_tx_bytes_per_s": "communication-bound load recognised",
        "pcie_rx_bytes_per_s": "communication-bound load recognised",
        "nvlink_tx_bytes_per_s": "communication-bound load recognised",
        "nvlink_rx_bytes_per_s": "communication-bound load recognised",
        "nvlink_bandwidth_bytes_per_s": "NVLink traffic where profiling is not allowed",
        "ecc_corrected_total": "memory that wears out",
        "ecc_uncorrected_total": "memory faults, beside their XIDs",
        "remapped_rows_corrected_total": "rows that were replaced",
        "remapped_rows_uncorrected_total": "rows that were replaced after data was lost",
        "row_remap_pending": "a GPU that has to be reset before it is whole",
        "row_remap_failed": "a GPU to be replaced: its spare rows are used up",
        "pcie_replay_total": "a bad slot or riser",
        "pcie_link_gen": "a link that trained too low",
        "pcie_link_width": "a link that lost lanes",
        "pcie_max_link_gen": "what the link should be",
        "pcie_max_link_width": "what the link should be",
        "nvlink_crc_errors_total": "a bad NVLink (up to NVLink 4)",
        "nvlink_replay_errors_total": "a bad NVLink (up to NVLink 4)",
        "nvlink_recovery_errors_total": "a bad NVLink (up to NVLink 4)",
        "nvlink_symbol_errors_total": "a bad NVLink (NVLink 5)",
        "xid_code": "the driver's word on faults, as far as a last value tells it",
        "recovery_action": "what the driver wants done: a reset, a reboot, a drain",
        "fabric_cluster_uuid": "which GPUs share an NVLink domain",
        "fabric_clique_id": "which GPUs share an NVLink domain",
        "fabric_health_mask": "what is wrong with the fabric",
        "fabric_health_summary": "faults of the fabric",
        "chassis_serial": "which nodes share a chassis",
        "chassis_slot": "where the tray is",
        "tray_index": "where the tray is",
        "host_id": "which host of a tray it is",
        "module_id": "the same place on every node: slots are compared with slots",
        **EXTRA,
    }
)
"""What a counter is good for, by metric or by name of the field."""

# Fields that came with later versions of DCGM: an exporter that does not know one of them does not start.
LATE = frozenset(
    (
        "sw_power_cap_ns",
        "sync_boost_ns",
        "sw_thermal_ns",
        "hw_thermal_ns",
        "hw_power_brake_ns",
        "temperature_margin_c",
        "power_instant_w",
        "sm_cycles_elapsed_total",
        "nvlink_symbol_errors_total",
        "recovery_action",
        "fabric_health_mask",
        "fabric_health_summary",
        "chassis_serial",
        "chassis_slot",
        "tray_index",
        "host_id",
        "module_id",
    )
)


def field_of(name: str) -> str:
    """The field's older name, which every version knows that knows the field."""
    return name if name in EXTRA else PREFIX + METRICS[name].dcgm_names[-1]


def kind_of(name: str) -> str:
    """What dcgm-exporter is to make of it: a gauge, a counter, or a label of all the GPU's series."""
    metric = METRICS.get(name)
    if metric is None:
        return "label" if name.endswith(("VERSION", "SERIAL")) else "gauge"
    if metric.type == "string" and name != "fabric_health_summary":
        return "label"
    return "counter" if metric.kind is Kind.COUNTER else "gauge"


def to_csv() -> str:
    """`deploy/dcgm-exporter-counters.csv`."""
    lines = [
        "# Counters for dcgm-exporter (--collectors FILE) that Isotach makes use of, and what each one buys.",
        "# Isotach works with any subset: `isotach doctor --dcgm-targets ...` says what is missing and its cost.",
        "# Fields named PROF need DCGM's profiling module (SYS_ADMIN) and are skipped where it is not there.",
        "# Format: DCGM field, Prometheus metric type, help.",
        "",
        *_lines([name for name in BUYS if name not in LATE]),
        "# Later versions of DCGM have the following ones. dcgm-exporter does not start with a field that it does not",
        "# know, and names it: take out that line.",
        "",
        *_lines([name for name in BUYS if name in LATE]),
    ]
    return "\n".join(lines)


def _lines(names: Collection[str]) -> list[str]:
    lines: list[str] = []
    for name in names:
        text = METRICS[name].help if name in METRICS else BUYS[name].capitalize() + "."
        help_text = text.replace(", ", " - ").replace(",", " ")
        lines += [f"# Buys {BUYS[name]}.", f"{field_of(name)}, {kind_of(name)}, {help_text}", ""]
    return lines


def missing(shown: Collection[str]) -> dict[str, str]:
    """Of all that could be shown, what is not (in neither dialect): the field, and what it would buy."""
    found = set(shown)
    absent: dict[str, str] = {}
    for name, buys in BUYS.items():
        names = (name,) if name in EXTRA else tuple(PREFIX + one for one in METRICS[name].dcgm_names)
        if found.isdisjoint(names):
            absent[field_of(name)] = buys
    return absent
