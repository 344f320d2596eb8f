"""Calls: what NVML answers one by one, which metrics that fills, and what is asked where a field is missing.

To add a call: one line in `CALLS`, or in `INSTEAD` if it only stands in for a field.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pynvml


class Call(NamedTuple):
    """A function of NVML, its arguments after the handle, and the metrics that its answer fills, in order."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    metrics: tuple[str, ...]
    convert: Callable[[Any], tuple[int | float, ...]]


def _same(answer: Any) -> tuple[int | float, ...]:
    return (answer,)


def _milli(answer: Any) -> tuple[int | float, ...]:
    return (answer / 1_000,)


def _rates(answer: Any) -> tuple[int | float, ...]:
    return (answer.gpu / 100, answer.memory / 100)


def _used(answer: Any) -> tuple[int | float, ...]:
    return (answer.used,)


def _violation(answer: Any) -> tuple[int | float, ...]:
    return (answer.violationTime,)


CALLS: tuple[Call, ...] = (
    Call(pynvml.nvmlDeviceGetClockInfo, (pynvml.NVML_CLOCK_SM,), ("sm_clock_mhz",), _same),
    Call(pynvml.nvmlDeviceGetClockInfo, (pynvml.NVML_CLOCK_MEM,), ("memory_clock_mhz",), _same),
    Call(pynvml.nvmlDeviceGetTemperatureV, (pynvml.NVML_TEMPERATURE_GPU,), ("temperature_c",), _same),
    Call(pynvml.nvmlDeviceGetMarginTemperature, (), ("temperature_margin_c",), _same),
    Call(pynvml.nvmlDeviceGetPowerUsage, (), ("power_w",), _milli),
    Call(pynvml.nvmlDeviceGetEnforcedPowerLimit, (), ("power_limit_w",), _milli),
    Call(pynvml.nvmlDeviceGetUtilizationRates, (), ("utilization_ratio", "memory_utilization_ratio"), _rates),
    Call(pynvml.nvmlDeviceGetCurrentClocksEventReasons, (), ("clock_event_reasons",), _same),
    Call(pynvml.nvmlDeviceGetPerformanceState, (), ("performance_state",), _same),
    Call(pynvml.nvmlDeviceGetMemoryInfo, (pynvml.nvmlMemory_v2,), ("memory_used_bytes",), _used),
    Call(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, (), ("pcie_link_gen",), _same),
    Call(pynvml.nvmlDeviceGetCurrPcieLinkWidth, (), ("pcie_link_width",), _same),
)
"""Asked of every GPU that has them."""

_CORRECTED = (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_VOLATILE_ECC)
_UNCORRECTED = (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
_REMAPPED = (
    "remapped_rows_corrected_total",
    "remapped_rows_uncorrected_total",
    "row_remap_pending",
    "row_remap_failed",
)

INSTEAD: tuple[tuple[str, Call], ...] = (
    ("temperature_c", Call(pynvml.nvmlDeviceGetTemperature, (0,), ("temperature_c",), _same)),
    (
        "clock_event_reasons",
        Call(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, (), ("clock_event_reasons",), _same),
    ),
    ("energy_mj", Call(pynvml.nvmlDeviceGetTotalEnergyConsumption, (), ("energy_mj",), _same)),
    ("ecc_corrected_total", Call(pynvml.nvmlDeviceGetTotalEccErrors, _CORRECTED, ("ecc_corrected_total",), _same)),
    (
        "ecc_uncorrected_total",
        Call(pynvml.nvmlDeviceGetTotalEccErrors, _UNCORRECTED, ("ecc_uncorrected_total",), _same),
    ),
    ("remapped_rows_corrected_total", Call(pynvml.nvmlDeviceGetRemappedRows, (), _REMAPPED, tuple)),
    ("pcie_replay_total", Call(pynvml.nvmlDeviceGetPcieReplayCounter, (), ("pcie_replay_total",), _same)),
    (
        "sw_power_cap_ns",
        Call(
            pynvml.nvmlDeviceGetViolationStatus, (pynvml.NVML_PERF_POLICY_POWER,), ("power_violation_ns",), _violation
        ),
    ),
    (
        "hw_thermal_ns",
        Call(
            pynvml.nvmlDeviceGetViolationStatus,
            (pynvml.NVML_PERF_POLICY_THERMAL,),
            ("thermal_violation_ns",),
            _violation,
        ),
    ),
)
"""Asked only while the metric named first is not there."""
