"""Statics: what belongs to the inventory of a GPU: identity, limits, place in rack and fabric.

To add one: a line in `_PLAIN`, or a function below.
"""

import struct
from collections.abc import Callable
from typing import Any

import pynvml

from collectors.nvml_child.library import GONE, RESET_REQUIRED, UNSUPPORTED, Failed, Library

_PLATFORM = struct.Struct("<I16s16s5B")
"""nvmlPlatformInfo_v2_t: version, IB GUID, chassis serial, slot, tray, host, peer type, module."""

_STATES = {1: "Not Started", 2: "In Progress", 3: "Completed"}
_SUMMARIES = {1: "Healthy", 2: "Unhealthy", 3: "Limited Capacity"}
_STATUSES = {0: "Success", 23: "Insufficient Resources", 27: "Not Ready", 999: "Unknown Error"}


def _watts(milliwatts: int) -> float:
    return milliwatts / 1_000


_PLAIN: tuple[tuple[str, Callable[..., Any], tuple[Any, ...], Callable[[Any], Any] | None], ...] = (
    ("model", pynvml.nvmlDeviceGetName, (), None),
    ("serial", pynvml.nvmlDeviceGetSerial, (), None),
    ("max_sm_clock_mhz", pynvml.nvmlDeviceGetMaxClockInfo, (pynvml.NVML_CLOCK_SM,), None),
    ("max_memory_clock_mhz", pynvml.nvmlDeviceGetMaxClockInfo, (pynvml.NVML_CLOCK_MEM,), None),
    ("power_limit_requested_w", pynvml.nvmlDeviceGetPowerManagementLimit, (), _watts),
    ("power_limit_default_w", pynvml.nvmlDeviceGetPowerManagementDefaultLimit, (), _watts),
    ("memory_total_bytes", pynvml.nvmlDeviceGetMemoryInfo, (pynvml.nvmlMemory_v2,), lambda memory: memory.total),
    ("pcie_max_link_gen", pynvml.nvmlDeviceGetMaxPcieLinkGeneration, (), None),
    ("pcie_max_link_width", pynvml.nvmlDeviceGetMaxPcieLinkWidth, (), None),
    ("module_id", pynvml.nvmlDeviceGetModuleId, (), None),
)


def identity(library: Library, handle: Any) -> dict[str, Any]:
    """UUID and bus id; raises Failed."""
    info = library.ask(pynvml.nvmlDeviceGetPciInfo, handle)
    found = {"bus": info.busId}
    try:
        found["uuid"] = library.ask(pynvml.nvmlDeviceGetUUID, handle)
    except Failed as failed:
        if failed.code in GONE:
            raise
    return found


def statics(library: Library, handle: Any) -> dict[str, Any]:
    """What does not change while the driver is loaded; what is not supported is absent. Raises Failed if it is gone."""
    found: dict[str, Any] = {}
    for name, function, arguments, convert in _PLAIN:
        try:
            value = library.ask(function, handle, *arguments)
        except Failed as failed:
            _unless_gone(failed)
            continue
        found[name] = value if convert is None else convert(value)
    try:
        found |= _platform(library, handle)
    except Failed as failed:
        _unless_gone(failed)
    return found


def changing(library: Library, handle: Any, values: dict[str, int | float]) -> dict[str, Any]:
    """What belongs to the inventory and yet changes: MIG mode and the fabric; its health mask goes into `values`."""
    found: dict[str, Any] = {}
    try:
        found["mig_enabled"] = library.ask(pynvml.nvmlDeviceGetMigMode, handle)[0] == 1
    except Failed as failed:
        _unless_gone(failed)
    try:
        found |= _fabric(library, handle, values)
    except Failed as failed:
        _unless_gone(failed)
    return found


def _unless_gone(failed: Failed) -> None:
    if failed.code in GONE or failed.code == RESET_REQUIRED:
        raise failed


def _platform(library: Library, handle: Any) -> dict[str, Any]:
    info = pynvml.c_nvmlPlatformInfo_v2_t()
    library.ask(pynvml.nvmlDeviceGetPlatformInfo, handle, pynvml.byref(info))
    # read as bytes: pynvml takes each of these numbers for a character, and fails above 127
    _, _, chassis, slot, tray, host, _, module = _PLATFORM.unpack_from(bytes(info))
    found: dict[str, Any] = {"chassis_slot": slot, "tray_index": tray, "host_id": host, "module_id": module}
    serial = chassis.rstrip(b"\0").decode("ascii", "replace").strip()
    if serial.isprintable() and serial.strip("0 "):
        found["chassis_serial"] = serial
    return found


def _fabric(library: Library, handle: Any, values: dict[str, int | float]) -> dict[str, Any]:
    """State, status, cluster, clique and health of the NVLink fabric; empty where there is none."""
    info: Any = pynvml.c_nvmlGpuFabricInfo_v3_t()
    try:
        library.ask(pynvml.nvmlDeviceGetGpuFabricInfoV, handle, pynvml.byref(info))
    except Failed as failed:
        if failed.code not in UNSUPPORTED:
            raise
        info = pynvml.c_nvmlGpuFabricInfo_v2_t()
        library.ask(pynvml.nvmlDeviceGetGpuFabricInfoV, handle, pynvml.byref(info))
    state = _STATES.get(info.state & 0xFF)  # one byte in NVML's header, four in pynvml
    if state is None:
        return {}
    text = bytes(info.clusterUuid).hex()
    values["fabric_health_mask"] = info.healthMask
    found: dict[str, Any] = {
        "fabric_state": state,
        "fabric_status": _STATUSES.get(info.status, f"NVML error {info.status}"),
        "fabric_cluster_uuid": f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}",
        "fabric_clique_id": info.cliqueId,
    }
    summary = _SUMMARIES.get(getattr(info, "healthSummary", 0))
    return found if summary is None else found | {"fabric_health_summary": summary}
