"""Fields: what NVML answers in one batch (`nvmlDeviceGetFieldValues`), with their ids, scopes and units.

To add a field: one line in `FIELDS`.
"""

import struct
from typing import Any

import pynvml

from collectors.nvml_child.library import UNSUPPORTED, Failed, Library
from collectors.nvml_child.number import number

_FIELD = struct.Struct("<IIqqII8s")
"""nvmlFieldValue_t: field, scope, time, latency, value's type, result, value."""

ALL_LINKS = 0xFFFF_FFFF  #: the scope that sums over all NVLinks

FIELDS: tuple[tuple[int, int, str, float], ...] = (
    # id, scope, metric, factor
    (pynvml.NVML_FI_DEV_MEMORY_TEMP, 0, "memory_temperature_c", 1),
    (pynvml.NVML_FI_DEV_POWER_INSTANT, 0, "power_instant_w", 0.001),
    (pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, 0, "energy_mj", 1),
    (pynvml.NVML_FI_DEV_PERF_POLICY_POWER, 0, "sw_power_cap_ns", 1),
    (pynvml.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST, 0, "sync_boost_ns", 1),
    (pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL, 0, "ecc_corrected_total", 1),
    (pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL, 0, "ecc_uncorrected_total", 1),
    (pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER, 0, "pcie_replay_total", 1),
    (pynvml.NVML_FI_DEV_REMAPPED_COR, 0, "remapped_rows_corrected_total", 1),
    (pynvml.NVML_FI_DEV_REMAPPED_UNC, 0, "remapped_rows_uncorrected_total", 1),
    (pynvml.NVML_FI_DEV_REMAPPED_PENDING, 0, "row_remap_pending", 1),
    (pynvml.NVML_FI_DEV_REMAPPED_FAILURE, 0, "row_remap_failed", 1),
    (pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, 0, "nvlink_crc_errors_total", 1),
    (pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, 0, "nvlink_replay_errors_total", 1),
    (pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, 0, "nvlink_recovery_errors_total", 1),
    (pynvml.NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS, ALL_LINKS, "nvlink_symbol_errors_total", 1),
    (pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, 0, "recovery_action", 1),
)

_SLOWDOWNS = ("sw_thermal_ns", "hw_thermal_ns", "hw_power_brake_ns")
_LAST_OLD_DRIVER, _FIRST_NEW_DRIVER = 580, 615


def slowdown_fields(driver: str) -> tuple[tuple[int, int, str, float], ...]:
    """Time slowed for heat and by the power brake: 251-253 up to driver 580, 269-271 in headers of 615.

    Between the two nobody has said: then neither. A wrong id would give the flags of power smoothing instead.
    """
    major = driver.partition(".")[0]
    number = int(major) if major.isdigit() else 0
    if _LAST_OLD_DRIVER < number < _FIRST_NEW_DRIVER:
        return ()
    first = 251 if number <= _LAST_OLD_DRIVER else 269
    return tuple((first + i, 0, metric, 1) for i, metric in enumerate(_SLOWDOWNS))


class Fields:
    """The fields of one GPU. Those that it does not have are left out of the batch until `renew`."""

    def __init__(self, library: Library, handle: Any, *, driver: str) -> None:
        self._library = library
        self._handle = handle
        self._all = (*FIELDS, *slowdown_fields(driver))
        self._counters: dict[str, int | float] = {}
        self._wrong: set[str] = set()
        self.renew()

    def renew(self) -> None:
        """Ask for everything again: support can change with MIG, ECC mode or a new link."""
        self._asked = [field for field in self._all if field[2] not in self._wrong]

    def read(self, values: dict[str, int | float], missing: dict[str, int]) -> None:
        """Fill in the fields of this moment; raises Failed only for what concerns the whole GPU."""
        if not self._asked:
            return
        try:
            answers = self._library.ask(
                pynvml.nvmlDeviceGetFieldValues, self._handle, [(number, scope) for number, scope, _, _ in self._asked]
            )
        except Failed as failed:
            if failed.code not in UNSUPPORTED:
                raise
            self._asked = []
            return
        unsupported = False
        # read as bytes: an attribute of pynvml's structures costs as much as the call
        for (_, _, metric, factor), found in zip(self._asked, _FIELD.iter_unpack(answers), strict=True):
            _, _, _, _, kind, code, raw = found
            if code:
                if code in UNSUPPORTED:
                    unsupported = True
                else:
                    missing[metric] = code
                continue
            value = number(kind, raw)
            values[metric] = value if factor == 1 else value * factor
        if unsupported:
            self._asked = [f for f in self._asked if f[2] in values or f[2] in missing]
        self._check_slowdowns(values)

    def _check_slowdowns(self, values: dict[str, int | float]) -> None:
        """A counter of ns that reads 1, or falls back while the energy goes on, is another field under its number."""
        for metric in _SLOWDOWNS:
            value = values.get(metric)
            if value is None:
                continue
            if 0 < value < 1_000 or (value < self._counters.get(metric, 0) and not self._reset(values)):
                self._wrong.add(metric)
                del values[metric]
            else:
                self._counters[metric] = value
        if "energy_mj" in values:
            self._counters["energy_mj"] = values["energy_mj"]
        if self._wrong:
            self._asked = [field for field in self._asked if field[2] not in self._wrong]

    def _reset(self, values: dict[str, int | float]) -> bool:
        return values.get("energy_mj", 0) <= self._counters.get("energy_mj", 0)
