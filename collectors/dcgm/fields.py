"""DCGM's fields as metrics of the catalogue: names of both dialects, units made ours once, blanks made missing.

To read another field: its `dcgm_id` and `dcgm_names` in the catalogue; where its unit is not ours, a line in `FACTORS`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from collectors.cells import Missing
from telemetry.metrics import BY_DCGM_NAME, SAMPLED, Kind, Metric

MIB = 1 << 20
FACTORS: Mapping[int, float] = MappingProxyType({203: 0.01, 204: 0.01, 250: MIB, 252: MIB, 449: 1e6})
"""What one of a field's units (%, MiB, MB/s) is in ours, by field id; the others have ours."""

PREFIX = "DCGM_FI_"
FABRIC_STATUS = "DCGM_FI_DEV_FABRIC_MANAGER_STATUS"
FABRIC_ERROR = "DCGM_FI_DEV_FABRIC_MANAGER_ERROR"
DRIVER_VERSION = "DCGM_FI_DRIVER_VERSION"
FABRIC_HEALTH = "DCGM_FI_DEV_FABRIC_HEALTH_SUMMARY"
SERIAL = "DCGM_FI_DEV_SERIAL"
MIG_MODE = "DCGM_FI_DEV_MIG_MODE"
EXTRA: Mapping[str, str] = MappingProxyType(
    {
        DRIVER_VERSION: "a changed driver is seen at once, and compared with speed",
        SERIAL: "the board's serial number, for a ticket to the vendor",
        MIG_MODE: "whether a GPU is cut into instances, also when none exists",
        FABRIC_STATUS: "which GPUs share an NVLink domain, and faults of that fabric",
        FABRIC_ERROR: "why the fabric failed",
    }
)
"""Fields that are read, and are no metric of the catalogue: what each one is good for."""

_SAMPLED = frozenset(metric.name for metric in SAMPLED)
_BLANK_INT32 = 2_147_483_632.0
_BLANK_FP64 = 140_737_488_355_328.0
_BLANK_INT64 = 9.223372036854e18  # as float64 all four are one number
_BLANKS = (Missing.UNSUPPORTED, Missing.UNSUPPORTED, Missing.UNSUPPORTED, Missing.NO_PERMISSION)
_TOPS: Mapping[str, float] = MappingProxyType(
    {"uint8": 2**8 - 1, "uint16": 2**16 - 1, "uint32": 2**32 - 2, "int16": 2**15 - 1, "float32": 3e38}
)
_EXACT = 2.0**53
_OF_AN_INSTANCE = ("utilization", "memory_utilization_ratio", "memory_used_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """How the numbers of one metric are read. `whole` is False where a MIG instance's value says nothing of its GPU."""

    metric: Metric
    factor: float
    low: float
    high: float
    fraction: bool
    wide: bool
    sampled: bool
    whole: bool


def _field(metric: Metric) -> Field:
    names = (*metric.dcgm_names, "")
    return Field(
        metric=metric,
        factor=FACTORS.get(metric.dcgm_id or 0, 1),
        low=0 if metric.low is None else metric.low,
        high=_TOPS.get(metric.type, 9.2e18) if metric.high is None else metric.high,
        fraction=metric.type.startswith("float"),
        wide=metric.type in ("uint64", "int64"),
        sampled=metric.name in _SAMPLED,
        whole=not (names[0].startswith("PROF_") or metric.name.startswith(_OF_AN_INSTANCE)),
    )


FIELDS: Mapping[str, Field] = MappingProxyType(
    {name: _field(metric) for name, metric in BY_DCGM_NAME.items() if metric.kind is not Kind.EVENT}
)
"""Every field with a number or word of its own, by its name in either dialect."""

XID_FIELDS = frozenset(name for name, metric in BY_DCGM_NAME.items() if metric.kind is Kind.EVENT)
"""The sticky last XID, in either dialect."""

READ = frozenset((*FIELDS, *XID_FIELDS, *EXTRA))
"""Names of all fields that are read; other series of a page are passed over."""


def blank(number: float, *, wide: bool) -> Missing | None:
    """Why DCGM has no value, if this number is one of its markers; the 32-bit ones are numbers to a 64-bit counter."""
    if number >= _BLANK_INT32:  # every marker, and few values
        if number >= _BLANK_INT64:
            return Missing.UNSUPPORTED
        if not wide:
            for first in (_BLANK_INT32, _BLANK_FP64):
                if first <= number <= first + 3:
                    return _BLANKS[int(number - first)]
    return Missing.UNSUPPORTED if number != number else None  # NaN


def convert(field: Field, number: float) -> int | float | Missing:
    """A page's number as the metric's value in our unit, or why there is none."""
    if number >= _BLANK_INT32 or number != number:
        reason = blank(number, wide=field.wide)
        if reason is not None:
            return reason
    value = number * field.factor
    if not field.low <= value <= field.high:
        return Missing.OUT_OF_RANGE
    return value if field.fraction else round(value)
