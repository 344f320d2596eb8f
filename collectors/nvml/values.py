"""Values of the child checked against the catalogue: in range, or missing with the reason.

To check another kind of garbage: `_limits`.
"""

from collections.abc import Mapping
from functools import lru_cache

from collectors.cells import Missing
from collectors.nvml.codes import meaning
from telemetry.metrics import METRICS

_BITS: Mapping[str, int] = {"uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64, "int16": 15, "int64": 63}
_BLANKS = 32  #: the driver's and DCGM's markers for "no value" sit this close below the top of a type
Checked = tuple[dict[str, int | float], dict[str, Missing]]


@lru_cache(maxsize=256)
def _limits(name: str) -> tuple[float, float, bool] | None:
    metric = METRICS.get(name)
    if metric is None or metric.type == "string":
        return None
    low = 0 if metric.low is None else metric.low
    top = 2 ** min(_BITS.get(metric.type, 63), 63) - 1 - _BLANKS
    # an unsigned type's own top is what all ones look like
    high = metric.high if metric.high is not None else top
    return low, high, metric.type.startswith("float")


def check(values: Mapping[str, object], codes: Mapping[str, int]) -> Checked:
    """The values that can be, in their metric's type, and why the others are missing."""
    good: dict[str, int | float] = {}
    missing: dict[str, Missing] = {}
    for name, value in values.items():
        limits = _limits(name)
        if limits is None or isinstance(value, bool) or not isinstance(value, int | float):
            missing[name] = Missing.UNREADABLE
            continue
        low, high, fraction = limits
        if low <= value <= high:  # false for NaN too
            good[name] = value if fraction or isinstance(value, int) else round(value)
        else:
            missing[name] = Missing.OUT_OF_RANGE
    for name, code in codes.items():
        missing[name] = meaning(code)
    return good, missing
