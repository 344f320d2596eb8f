"""Cells: the text of one value of nvidia-smi, with its unit or its excuse, as a number of the catalogue.

To add a unit: one entry in `_UNITS`. To add an excuse (a text that stands for "no value"): one line in `_EXCUSES`.
"""

import re
from collections.abc import Mapping
from enum import StrEnum

from telemetry.metrics import Metric


class Missing(StrEnum):
    """Why a cell holds no value."""

    UNSUPPORTED = "unsupported"  #: the model or driver does not have it: not a fault, not counted
    NO_PERMISSION = "no_permission"
    UNKNOWN_ERROR = "unknown_error"
    LOST = "lost"  #: the whole GPU is gone
    RESET_REQUIRED = "reset_required"
    OUT_OF_RANGE = "out_of_range"
    UNREADABLE = "unreadable"


_EXCUSES: Mapping[str, Missing] = {
    "": Missing.UNSUPPORTED,
    "n/a": Missing.UNSUPPORTED,
    "not supported": Missing.UNSUPPORTED,
    "not available": Missing.UNSUPPORTED,
    "not found": Missing.UNSUPPORTED,
    "function not found": Missing.UNSUPPORTED,
    "requested functionality has been deprecated": Missing.UNSUPPORTED,
    "insufficient permissions": Missing.NO_PERMISSION,
    "no permission": Missing.NO_PERMISSION,
    "unknown error": Missing.UNKNOWN_ERROR,
    "err!": Missing.UNKNOWN_ERROR,
    "gpu is lost": Missing.LOST,
    "gpu requires reset": Missing.RESET_REQUIRED,
    "reset required": Missing.RESET_REQUIRED,
}

# Per unit of the catalogue: unit in the cell -> (numerator, denominator). The first one is meant where none is written.
_UNITS: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "MHz": {"MHz": (1, 1), "kHz": (1, 1_000), "GHz": (1_000, 1)},
    "W": {"W": (1, 1), "mW": (1, 1_000), "kW": (1_000, 1)},
    "C": {"C": (1, 1)},
    "ratio": {"%": (1, 100)},
    "bytes": {"MiB": (1 << 20, 1), "B": (1, 1), "KiB": (1 << 10, 1), "GiB": (1 << 30, 1), "TiB": (1 << 40, 1)},
    "ns": {"us": (1_000, 1), "ns": (1, 1), "ms": (1_000_000, 1), "s": (1_000_000_000, 1)},
    # NVML counts the PCIe rate in KB/s of 1000 bytes, and nvidia-smi passes it on.
    "bytes/s": {"KB/s": (1_000, 1), "B/s": (1, 1), "MB/s": (1_000_000, 1), "GB/s": (1_000_000_000, 1)},
    "lanes": {"x": (1, 1)},
}
_PLAIN: Mapping[str, tuple[int, int]] = {"": (1, 1)}

_WORDS: Mapping[str, Mapping[str, int]] = {
    "bool": {"no": 0, "yes": 1, "false": 0, "true": 1, "disabled": 0, "enabled": 1},
    # nvmlDeviceGpuRecoveryAction_t, in the words that nvidia-smi uses for it
    "code": {
        "none": 0,
        "reset": 1,
        "gpu reset": 1,
        "reboot": 2,
        "node reboot": 2,
        "drain p2p": 3,
        "drain and reset": 4,
    },
}

_TYPE_HIGH: Mapping[str, int] = {"uint8": 2**8 - 1, "uint16": 2**16 - 1, "uint32": 2**32 - 1, "uint64": 2**64 - 1}

_NUMBER = re.compile(r"([+-]?\d{1,30}(?:\.\d{1,30})?(?:[eE][+-]?\d{1,2})?)\s*([A-Za-z%/]{0,8})", re.ASCII)
_HEX = re.compile(r"0x[0-9a-f]{1,16}", re.ASCII | re.IGNORECASE)
_PSTATE = re.compile(r"P(\d{1,2})", re.ASCII | re.IGNORECASE)


def excuse(text: str) -> Missing | None:
    """The reason that the text gives for having no value; None if it is a value."""
    return _EXCUSES.get(text.strip().strip("[]").strip().casefold())


def plain_text(text: str | None) -> str | None:
    """The text of a cell that holds a name or number as text; None if it is absent or an excuse."""
    if text is None or excuse(text) is not None:
        return None
    return text.strip()


def parse(metric: Metric, text: str, *, unit: str = "") -> int | float | Missing:
    """The cell as a value of the metric, in the metric's unit and range, or why there is none.

    `unit` is the unit of the column's heading, for cells that carry none.
    """
    reason = excuse(text)
    if reason is not None:
        return reason
    value = _number(metric, text.strip().strip("[]").strip(), unit)
    if isinstance(value, Missing):
        return value
    if metric.type.startswith("float"):
        value = float(value)
    elif isinstance(value, float):
        value = round(value)
    low = metric.low if metric.low is not None else 0
    high = metric.high if metric.high is not None else _TYPE_HIGH.get(metric.type, 2**63 - 1)
    return value if low <= value <= min(high, _TYPE_HIGH.get(metric.type, high)) else Missing.OUT_OF_RANGE


def _number(metric: Metric, text: str, unit: str) -> int | float | Missing:
    word = _WORDS.get(metric.unit, {}).get(text.casefold())
    if word is not None:
        return word
    if metric.unit == "bits" and _HEX.fullmatch(text):
        return int(text, 16)
    if metric.unit == "P-state" and (state := _PSTATE.fullmatch(text)):
        return int(state[1])
    match = _NUMBER.fullmatch(text)
    if match is None:
        return Missing.UNREADABLE
    units = _UNITS.get(metric.unit, _PLAIN)
    factor = units.get(match[2] or unit or next(iter(units)))
    if factor is None:
        return Missing.UNREADABLE
    digits = match[1]
    value: int | float = int(digits) if digits.lstrip("+-").isdigit() else float(digits)
    numerator, denominator = factor
    return value * numerator if denominator == 1 else value * numerator / denominator
