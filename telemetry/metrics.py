"""The catalogue of GPU metrics: one line each, read by collectors, codec, features, documentation and tests.

To add a metric: one line at the END of its table (the wire format numbers the columns), then fill it in a collector.
DCGM: field ids and both dialects of names, as of DCGM 4.6 (`dcgm_fields.h`), without the `DCGM_FI_` prefix.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Literal

ArrowType = Literal["uint8", "uint16", "uint32", "uint64", "int16", "int64", "float32", "float64", "bool", "string"]


class Kind(StrEnum):
    """How a metric behaves over time."""

    GAUGE = "gauge"  #: a value at a moment
    COUNTER = "counter"  #: grows; falls back when the driver is loaded again
    BITMASK = "bitmask"  #: bits to be read one by one, never compared whole
    STATIC = "static"  #: belongs to the inventory, not to each sample
    EVENT = "event"  #: happens at a time; a sampled "last value" hides events


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric: its name carries the unit; null means unsupported or unreadable, never 0.

    `low` and `high` are the inclusive valid range: a value outside is garbage, counted and made null.
    """

    name: str
    unit: str
    kind: Kind
    type: ArrowType
    low: float | None = None
    high: float | None = None
    dcgm_id: int | None = None
    dcgm_names: tuple[str, ...] = ()
    nvml: str | None = None
    smi_query: tuple[str, ...] = ()
    smi_xml: tuple[str, ...] = ()
    help: str


def _m(
    name: str,
    unit: str,
    kind: Kind,
    type: ArrowType,  # noqa: A002 - the field's name in the catalogue
    low: float | None,
    high: float | None,
    dcgm_id: int | None,
    dcgm_names: str,
    nvml: str | None,
    smi_query: str,
    smi_xml: str,
    help: str,  # noqa: A002 - the field's name in the catalogue
) -> Metric:
    return Metric(
        name=name,
        unit=unit,
        kind=kind,
        type=type,
        low=low,
        high=high,
        dcgm_id=dcgm_id,
        dcgm_names=tuple(dcgm_names.split()),
        nvml=nvml,
        smi_query=tuple(smi_query.split()),
        smi_xml=tuple(smi_xml.split()),
        help=help,
    )


G, C, B, S, E = Kind.GAUGE, Kind.COUNTER, Kind.BITMASK, Kind.STATIC, Kind.EVENT
DAY_NS = 86_400 * 10**9
TEN_YEARS_NS = 3_660 * DAY_NS  # no counter of throttle time outlives a GPU
_REASON = "clocks_event_reasons_counters/clocks_event_reasons_counters_"

# fmt: off
_SAMPLED = (
    # name, unit, kind, type, low, high, DCGM id, DCGM names (new, old), NVML, nvidia-smi query, nvidia-smi XML path, help
    _m("sm_clock_mhz", "MHz", G, "uint16", 0, 5_000, 100, "DEV_SM_CLOCK", "nvmlDeviceGetClockInfo(SM)", "clocks.sm clocks.current.sm", "clocks/sm_clock",
       "SM clock at the time of the sample; its mean over busy samples is the effective clock."),
    _m("memory_clock_mhz", "MHz", G, "uint16", 0, 20_000, 101, "DEV_MEM_CLOCK", "nvmlDeviceGetClockInfo(MEM)", "clocks.mem clocks.current.memory", "clocks/mem_clock",
       "Memory clock at the time of the sample."),
    _m("temperature_c", "C", G, "int16", -30, 150, 150, "DEV_GPU_TEMP_CELSIUS DEV_GPU_TEMP", "nvmlDeviceGetTemperatureV(GPU)", "temperature.gpu", "temperature/gpu_temp",
       "Temperature of the GPU die."),
    _m("memory_temperature_c", "C", G, "int16", -30, 150, 140, "DEV_MEMORY_TEMP_CELSIUS DEV_MEMORY_TEMP", "nvmlDeviceGetFieldValues(MEMORY_TEMP)", "temperature.memory", "temperature/memory_temp",
       "Temperature of the HBM."),
    _m("temperature_margin_c", "C", G, "int16", -100, 150, 153, "DEV_GPU_TEMP_MARGIN_CELSIUS DEV_GPU_TEMP_LIMIT", "nvmlDeviceGetMarginTemperature", "temperature.gpu.tlimit", "temperature/gpu_temp_tlimit",
       "Signed distance to the nearest slowdown threshold; negative is beyond it."),
    _m("power_w", "W", G, "float32", 0, 5_000, 155, "DEV_BOARD_POWER_WATTS DEV_POWER_USAGE", "nvmlDeviceGetPowerUsage", "power.draw.average power.draw", "gpu_power_readings/average_power_draw gpu_power_readings/power_draw power_readings/power_draw",
       "Board power, averaged by the driver (1 s on most models)."),
    _m("power_instant_w", "W", G, "float32", 0, 5_000, 157, "DEV_BOARD_POWER_RAW_WATTS DEV_POWER_USAGE_INSTANT", "nvmlDeviceGetFieldValues(POWER_INSTANT)", "power.draw.instant", "gpu_power_readings/instant_power_draw",
       "Board power at this moment."),
    _m("power_limit_w", "W", G, "float32", 0, 5_000, 164, "DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS DEV_ENFORCED_POWER_LIMIT", "nvmlDeviceGetEnforcedPowerLimit", "enforced.power.limit power.limit", "gpu_power_readings/current_power_limit gpu_power_readings/enforced_power_limit power_readings/enforced_power_limit",
       "Power limit that the driver enforces after all limiters."),
    _m("utilization_ratio", "ratio", G, "float32", 0, 1, 203, "DEV_GPU_UTIL_RATIO DEV_GPU_UTIL", "nvmlDeviceGetUtilizationRates(gpu)", "utilization.gpu", "utilization/gpu_util",
       "Share of time with at least one kernel running; DCGM and NVML give an integer 0-100 even where the name says ratio."),
    _m("memory_utilization_ratio", "ratio", G, "float32", 0, 1, 204, "DEV_MEM_COPY_UTIL", "nvmlDeviceGetUtilizationRates(memory)", "utilization.memory", "utilization/memory_util",
       "Share of time in which device memory was read or written."),
    _m("clock_event_reasons", "bits", B, "uint64", 0, 0xFFFF_FFFF, 112, "DEV_CLOCKS_EVENT_REASONS DEV_CLOCK_THROTTLE_REASONS", "nvmlDeviceGetCurrentClocksEventReasons", "clocks_event_reasons.active clocks_throttle_reasons.active", "clocks_event_reasons clocks_throttle_reasons",
       "Why the clocks are where they are: a bit per reason, see ClockEvent; read bits one by one."),
    _m("performance_state", "P-state", G, "uint8", 0, 15, 190, "DEV_GPU_PSTATE DEV_PSTATE", "nvmlDeviceGetPerformanceState", "pstate", "performance_state",
       "Performance state, 0 the fastest."),
    _m("memory_used_bytes", "bytes", G, "uint64", 0, 2**44, 252, "DEV_FB_USED", "nvmlDeviceGetMemoryInfo_v2(used)", "memory.used", "fb_memory_usage/used",
       "Framebuffer in use; null where memory is unified with the host's."),
    _m("energy_mj", "mJ", C, "uint64", 0, None, 156, "DEV_TOTAL_ENERGY_CONSUMPTION", "nvmlDeviceGetTotalEnergyConsumption", "", "",
       "Energy since the driver was loaded; falls back to zero on a reload."),
    _m("sw_power_cap_ns", "ns", C, "uint64", 0, TEN_YEARS_NS, 1420, "DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP_NS", "nvmlDeviceGetFieldValues(CLOCKS_EVENT_REASON_SW_POWER_CAP)", "clocks_event_reasons_counters.sw_power_cap", _REASON + "sw_power_cap",
       "Time with clocks lowered by the software power cap; a rate near one at full load is normal."),
    _m("sync_boost_ns", "ns", C, "uint64", 0, TEN_YEARS_NS, 1421, "DEV_CLOCKS_EVENT_REASON_SYNC_BOOST_COUNT_NS DEV_CLOCKS_EVENT_REASON_SYNC_BOOST_NS", "nvmlDeviceGetFieldValues(CLOCKS_EVENT_REASON_SYNC_BOOST)", "clocks_event_reasons_counters.sync_boost", _REASON + "sync_boost",
       "Time held down by sync boost."),
    _m("sw_thermal_ns", "ns", C, "uint64", 0, TEN_YEARS_NS, 1422, "DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS", "nvmlDeviceGetFieldValues(CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN)", "clocks_event_reasons_counters.sw_thermal_slowdown", _REASON + "sw_therm_slowdown",
       "Time slowed by software for heat."),
    _m("hw_thermal_ns", "ns", C, "uint64", 0, TEN_YEARS_NS, 1423, "DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS", "nvmlDeviceGetFieldValues(CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN)", "clocks_event_reasons_counters.hw_thermal_slowdown", _REASON + "hw_therm_slowdown",
       "Time slowed by hardware for heat."),
    _m("hw_power_brake_ns", "ns", C, "uint64", 0, TEN_YEARS_NS, 1424, "DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_NS", "nvmlDeviceGetFieldValues(CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN)", "clocks_event_reasons_counters.hw_power_brake", _REASON + "hw_power_brake",
       "Time slowed by the external power brake."),
    _m("power_violation_ns", "ns", C, "uint64", 0, TEN_YEARS_NS, 240, "DEV_POWER_VIOLATION", "nvmlDeviceGetViolationStatus(POWER)", "", "",
       "Time below the requested clocks because of power."),
    _m("thermal_violation_ns", "ns", C, "uint64", 0, TEN_YEARS_NS, 241, "DEV_THERMAL_VIOLATION", "nvmlDeviceGetViolationStatus(THERMAL)", "", "",
       "Time below the requested clocks because of heat."),
    _m("ecc_corrected_total", "errors", C, "uint64", 0, 10**11, 310, "DEV_ECC_SBE_VOL_TOTAL", "nvmlDeviceGetTotalEccErrors(CORRECTED, VOLATILE)", "ecc.errors.corrected.volatile.total", "ecc_errors/volatile/sram_correctable+ecc_errors/volatile/dram_correctable",
       "Corrected ECC errors since the driver was loaded."),
    _m("ecc_uncorrected_total", "errors", C, "uint64", 0, 10**9, 311, "DEV_ECC_DBE_VOL_TOTAL", "nvmlDeviceGetTotalEccErrors(UNCORRECTED, VOLATILE)", "ecc.errors.uncorrected.volatile.total", "ecc_errors/volatile/sram_uncorrectable_parity+ecc_errors/volatile/sram_uncorrectable_secded+ecc_errors/volatile/dram_uncorrectable ecc_errors/volatile/sram_uncorrectable+ecc_errors/volatile/dram_uncorrectable",
       "Uncorrected ECC errors since the driver was loaded."),
    _m("remapped_rows_corrected_total", "rows", C, "uint32", 0, 100_000, 394, "DEV_ROW_REMAP_CORRECTABLE_TOTAL DEV_CORRECTABLE_REMAPPED_ROWS", "nvmlDeviceGetRemappedRows(corrected)", "remapped_rows.correctable", "remapped_rows/remapped_row_corr",
       "Memory rows remapped for correctable errors."),
    _m("remapped_rows_uncorrected_total", "rows", C, "uint32", 0, 100_000, 393, "DEV_ROW_REMAP_UNCORRECTABLE_TOTAL DEV_UNCORRECTABLE_REMAPPED_ROWS", "nvmlDeviceGetRemappedRows(uncorrected)", "remapped_rows.uncorrectable", "remapped_rows/remapped_row_unc",
       "Memory rows remapped for uncorrectable errors."),
    _m("row_remap_pending", "bool", G, "uint8", 0, 1, 396, "DEV_ROW_REMAP_PENDING", "nvmlDeviceGetRemappedRows(pending)", "remapped_rows.pending", "remapped_rows/remapped_row_pending",
       "1 if a row waits for a reset to be remapped."),
    _m("row_remap_failed", "bool", G, "uint8", 0, 1, 395, "DEV_ROW_REMAP_FAILED DEV_ROW_REMAP_FAILURE", "nvmlDeviceGetRemappedRows(failed)", "remapped_rows.failure", "remapped_rows/remapped_row_failure",
       "1 if remapping has failed: spare rows are used up."),
    _m("pcie_replay_total", "replays", C, "uint32", 0, None, 202, "DEV_PCIE_REPLAY_TOTAL DEV_PCIE_REPLAY_COUNTER", "nvmlDeviceGetPcieReplayCounter", "pcie.replay_counter", "pci/replay_counter",
       "PCIe packets sent again; a healthy node has hundreds, only the rate speaks."),
    _m("pcie_link_gen", "generation", G, "uint8", 0, 10, 237, "DEV_PCIE_LINK_GEN", "nvmlDeviceGetCurrPcieLinkGeneration", "pcie.link.gen.current pcie.link.gen.gpucurrent", "pci/pci_gpu_link_info/pcie_gen/current_link_gen",
       "PCIe generation in use; idle GPUs may lower it."),
    _m("pcie_link_width", "lanes", G, "uint8", 0, 64, 238, "DEV_PCIE_LINK_WIDTH", "nvmlDeviceGetCurrPcieLinkWidth", "pcie.link.width.current", "pci/pci_gpu_link_info/link_widths/current_link_width",
       "PCIe lanes in use."),
    _m("nvlink_crc_errors_total", "errors", C, "uint64", 0, None, 409, "DEV_NVLINK_CRC_FLIT_ERROR_TOTAL DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "nvmlDeviceGetFieldValues(NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL)", "", "",
       "NVLink flow-control CRC errors over all links (up to NVLink 4)."),
    _m("nvlink_replay_errors_total", "errors", C, "uint64", 0, None, 429, "DEV_NVLINK_REPLAY_ERROR_TOTAL DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "nvmlDeviceGetFieldValues(NVLINK_REPLAY_ERROR_COUNT_TOTAL)", "", "",
       "NVLink replay errors over all links (up to NVLink 4)."),
    _m("nvlink_recovery_errors_total", "errors", C, "uint64", 0, None, 439, "DEV_NVLINK_RECOVERY_ERROR_TOTAL DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "nvmlDeviceGetFieldValues(NVLINK_RECOVERY_ERROR_COUNT_TOTAL)", "", "",
       "NVLink recoveries over all links (up to NVLink 4)."),
    _m("graphics_engine_active_ratio", "ratio", G, "float32", 0, 1, 1001, "PROF_GR_ENGINE_UTIL_RATIO PROF_GR_ENGINE_ACTIVE", "nvmlGpmMetricsGet(GRAPHICS_UTIL)", "", "",
       "Share of time with the graphics or compute engine busy; the utilisation that MIG nodes still report."),
    _m("sm_active_ratio", "ratio", G, "float32", 0, 1, 1002, "PROF_SM_UTIL_RATIO PROF_SM_ACTIVE", "nvmlGpmMetricsGet(SM_UTIL)", "", "",
       "Share of SM cycles with at least one warp."),
    _m("sm_occupancy_ratio", "ratio", G, "float32", 0, 1, 1003, "PROF_SM_OCCUPANCY_RATIO PROF_SM_OCCUPANCY", "nvmlGpmMetricsGet(SM_OCCUPANCY)", "", "",
       "Resident warps relative to the most possible."),
    _m("tensor_active_ratio", "ratio", G, "float32", 0, 1, 1004, "PROF_TENSOR_UTIL_RATIO PROF_PIPE_TENSOR_ACTIVE", "nvmlGpmMetricsGet(ANY_TENSOR_UTIL)", "", "",
       "Share of cycles with a tensor pipe active."),
    _m("dram_active_ratio", "ratio", G, "float32", 0, 1, 1005, "PROF_DRAM_UTIL_RATIO PROF_DRAM_ACTIVE", "nvmlGpmMetricsGet(DRAM_BW_UTIL)", "", "",
       "Share of cycles with device memory sending or receiving."),
    _m("fp64_active_ratio", "ratio", G, "float32", 0, 1, 1006, "PROF_FP64_UTIL_RATIO PROF_PIPE_FP64_ACTIVE", "nvmlGpmMetricsGet(FP64_UTIL)", "", "",
       "Share of cycles with the FP64 pipe active."),
    _m("fp32_active_ratio", "ratio", G, "float32", 0, 1, 1007, "PROF_FP32_UTIL_RATIO PROF_PIPE_FP32_ACTIVE", "nvmlGpmMetricsGet(FP32_UTIL)", "", "",
       "Share of cycles with the FP32 pipe active."),
    _m("fp16_active_ratio", "ratio", G, "float32", 0, 1, 1008, "PROF_FP16_UTIL_RATIO PROF_PIPE_FP16_ACTIVE", "nvmlGpmMetricsGet(FP16_UTIL)", "", "",
       "Share of cycles with the FP16 pipe active, tensor work excluded."),
    _m("pcie_tx_bytes_per_s", "bytes/s", G, "float32", 0, 10**12, 1009, "PROF_PCIE_TX_BYTES", "nvmlGpmMetricsGet(PCIE_TX_PER_SEC)", "", "pci/tx_util",
       "PCIe traffic sent by the GPU."),
    _m("pcie_rx_bytes_per_s", "bytes/s", G, "float32", 0, 10**12, 1010, "PROF_PCIE_RX_BYTES", "nvmlGpmMetricsGet(PCIE_RX_PER_SEC)", "", "pci/rx_util",
       "PCIe traffic received by the GPU."),
    _m("nvlink_tx_bytes_per_s", "bytes/s", G, "float32", 0, 10**13, 1011, "PROF_NVLINK_TX_BYTES", "nvmlGpmMetricsGet(NVLINK_TOTAL_TX_PER_SEC)", "", "",
       "NVLink traffic sent by the GPU."),
    _m("nvlink_rx_bytes_per_s", "bytes/s", G, "float32", 0, 10**13, 1012, "PROF_NVLINK_RX_BYTES", "nvmlGpmMetricsGet(NVLINK_TOTAL_RX_PER_SEC)", "", "",
       "NVLink traffic received by the GPU."),
    _m("sm_cycles_elapsed_total", "cycles", C, "uint64", 0, None, 1084, "PROF_SM_CYCLES_ELAPSED_TOTAL", None, "", "",
       "SM cycles; their rate is the true mean SM clock."),
    _m("fabric_health_mask", "bits", B, "uint32", 0, 0xFFFF_FFFF, 174, "DEV_FABRIC_HEALTH_MASK", "nvmlDeviceGetGpuFabricInfoV(healthMask)", "", "",
       "Health of the NVLink fabric as the driver sees it: two bits per topic."),
    _m("recovery_action", "code", G, "uint8", 0, 20, 1523, "DEV_GPU_RECOVERY_ACTION DEV_GET_GPU_RECOVERY_ACTION", "nvmlDeviceGetFieldValues(GET_GPU_RECOVERY_ACTION)", "gpu_recovery_action", "gpu_recovery_action",
       "What the driver asks for: 0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset."),
    _m("nvlink_symbol_errors_total", "errors", C, "uint64", 0, None, 1214, "DEV_NVLINK_RX_SYMBOL_ERROR_TOTAL DEV_NVLINK_COUNT_SYMBOL_ERRORS", "nvmlDeviceGetFieldValues(NVLINK_COUNT_SYMBOL_ERRORS)", "", "",
       "NVLink 5 symbol errors over all links."),
    _m("nvlink_bandwidth_bytes_per_s", "bytes/s", G, "float32", 0, 10**13, 449, "DEV_NVLINK_THROUGHPUT_TOTAL DEV_NVLINK_BANDWIDTH_TOTAL", None, "", "",
       "NVLink traffic over all links; a rate in MB/s at the source, though exported as a counter."),
)

_OTHER = (
    _m("max_sm_clock_mhz", "MHz", S, "uint16", 1, 5_000, 113, "DEV_MAX_SM_CLOCK", "nvmlDeviceGetMaxClockInfo(SM)", "clocks.max.sm", "max_clocks/sm_clock",
       "Highest SM clock the model supports."),
    _m("max_memory_clock_mhz", "MHz", S, "uint16", 1, 20_000, 114, "DEV_MAX_MEM_CLOCK", "nvmlDeviceGetMaxClockInfo(MEM)", "clocks.max.memory", "max_clocks/mem_clock",
       "Highest memory clock the model supports."),
    _m("power_limit_requested_w", "W", S, "float32", 1, 5_000, 160, "DEV_BOARD_POWER_LIMIT_REQUESTED_WATTS DEV_POWER_MGMT_LIMIT", "nvmlDeviceGetPowerManagementLimit", "power.limit", "gpu_power_readings/requested_power_limit power_readings/power_limit",
       "Power limit that was asked for."),
    _m("power_limit_default_w", "W", S, "float32", 1, 5_000, 163, "DEV_BOARD_POWER_LIMIT_DEFAULT_WATTS DEV_POWER_MGMT_LIMIT_DEF", "nvmlDeviceGetPowerManagementDefaultLimit", "power.default_limit", "gpu_power_readings/default_power_limit power_readings/default_power_limit",
       "Power limit the board is made for."),
    _m("memory_total_bytes", "bytes", S, "uint64", 1, 2**44, 250, "DEV_FB_TOTAL", "nvmlDeviceGetMemoryInfo_v2(total)", "memory.total", "fb_memory_usage/total",
       "Framebuffer size; null where memory is unified with the host's."),
    _m("pcie_max_link_gen", "generation", S, "uint8", 1, 10, 235, "DEV_PCIE_MAX_LINK_GEN", "nvmlDeviceGetMaxPcieLinkGeneration", "pcie.link.gen.max", "pci/pci_gpu_link_info/pcie_gen/max_link_gen",
       "Highest PCIe generation of GPU and slot together."),
    _m("pcie_max_link_width", "lanes", S, "uint8", 1, 64, 236, "DEV_PCIE_MAX_LINK_WIDTH", "nvmlDeviceGetMaxPcieLinkWidth", "pcie.link.width.max", "pci/pci_gpu_link_info/link_widths/max_link_width",
       "Most PCIe lanes of GPU and slot together."),
    _m("fabric_cluster_uuid", "", S, "string", None, None, 172, "DEV_FABRIC_CLUSTER_UUID", "nvmlDeviceGetGpuFabricInfoV(clusterUuid)", "fabric.clusterUuid", "fabric/clusterUuid",
       "NVLink cluster; counts only when the fabric state is Completed and the UUID is not all zeros."),
    _m("fabric_clique_id", "", S, "uint32", 0, None, 173, "DEV_FABRIC_CLIQUE_ID", "nvmlDeviceGetGpuFabricInfoV(cliqueId)", "fabric.cliqueId", "fabric/cliqueId",
       "Partition inside the NVLink cluster."),
    _m("fabric_health_summary", "", S, "string", None, None, 175, "DEV_FABRIC_HEALTH_SUMMARY", "nvmlDeviceGetGpuFabricInfoV(healthSummary)", "fabric.health.summary", "fabric/health/summary",
       "The driver's one-word verdict on the fabric."),
    _m("chassis_serial", "", S, "string", None, None, 572, "DEV_PLATFORM_CHASSIS_SERIAL_NUMBER", "nvmlDeviceGetPlatformInfo(chassisSerialNumber)", "platform.chassis_serial_number", "platformInfo/chassis_serial_number",
       "Serial number of the rack-scale chassis (GB200, GB300)."),
    _m("chassis_slot", "", S, "uint16", 0, 1_000, 573, "DEV_PLATFORM_CHASSIS_SLOT_NUMBER", "nvmlDeviceGetPlatformInfo(slotNumber)", "platform.slot_number", "platformInfo/slot_number",
       "Slot of the tray in its chassis."),
    _m("tray_index", "", S, "uint16", 0, 1_000, 574, "DEV_PLATFORM_TRAY_INDEX", "nvmlDeviceGetPlatformInfo(trayIndex)", "platform.tray_index", "platformInfo/tray_index",
       "Index of the compute tray in its chassis."),
    _m("host_id", "", S, "uint16", 0, 1_000, 575, "DEV_PLATFORM_HOST_ID", "nvmlDeviceGetPlatformInfo(hostId)", "platform.host_id", "platformInfo/host_id",
       "Host inside the tray."),
    _m("module_id", "", S, "uint16", 0, 1_000, 577, "DEV_PLATFORM_MODULE_ID", "nvmlDeviceGetModuleId", "platform.module_id", "platformInfo/module_id",
       "Position of the GPU module on its baseboard: the slot that neighbours on other nodes share."),
    _m("xid_code", "code", E, "uint32", 0, 10_000, 230, "DEV_XID_ERROR DEV_XID_ERRORS", "nvmlEventSetWait_v2(XID_CRITICAL_ERROR)", "", "",
       "XID of an event; DCGM keeps the last one for ever, so it is an event with a time here, never a gauge."),
)
# fmt: on

SAMPLED: tuple[Metric, ...] = _SAMPLED
"""Metrics in every sample, in wire order: only ever appended to."""

METRICS: Mapping[str, Metric] = MappingProxyType({m.name: m for m in (*_SAMPLED, *_OTHER)})
"""Every metric by name."""

BY_DCGM_ID: Mapping[int, Metric] = MappingProxyType({m.dcgm_id: m for m in METRICS.values() if m.dcgm_id is not None})
"""Every metric that DCGM has, by its field id, which does not change when DCGM renames a field."""

BY_DCGM_NAME: Mapping[str, Metric] = MappingProxyType(
    {"DCGM_FI_" + name: m for m in METRICS.values() for name in m.dcgm_names}
)
"""The same by full DCGM name, new and old dialect."""


class ClockEvent:
    """Bits of `clock_event_reasons` (NVML `nvmlClocksEventReason*`)."""

    GPU_IDLE = 0x1
    APPLICATIONS_CLOCKS = 0x2
    SW_POWER_CAP = 0x4
    HW_SLOWDOWN = 0x8
    SYNC_BOOST = 0x10
    SW_THERMAL = 0x20
    HW_THERMAL = 0x40
    HW_POWER_BRAKE = 0x80
    DISPLAY_CLOCKS = 0x100
