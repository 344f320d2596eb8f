"""Columns of recorded telemetry as metrics of the catalogue: names of ours, DCGM's, nvidia-smi's; units made ours once.

To read a metric's foreign name: nothing here, the catalogue has it. To read another unit: `UNITS`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import polars as pl

from analytics.cells import MISSING
from analytics.frames import dtype
from telemetry.metrics import BY_DCGM_ID, BY_DCGM_NAME, SAMPLED, Metric

MIB = 1 << 20

UNITS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "MHz": {"mhz": 1, "ghz": 1e3, "khz": 1e-3, "hz": 1e-6},
        "C": {"c": 1, "°c": 1},
        "W": {"w": 1, "mw": 1e-3, "kw": 1e3},
        "ratio": {"%": 0.01, "ratio": 1},
        "bytes": {"b": 1, "bytes": 1, "kib": 1 << 10, "mib": MIB, "gib": 1 << 30, "kb": 1e3, "mb": 1e6, "gb": 1e9},
        "mJ": {"mj": 1, "j": 1e3, "kj": 1e6},
        "ns": {"ns": 1, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9},
        "bytes/s": {
            "b/s": 1,
            "bytes/s": 1,
            "kb/s": 1e3,
            "mb/s": 1e6,
            "gb/s": 1e9,
            "kib/s": 1 << 10,
            "mib/s": MIB,
            "gib/s": 1 << 30,
        },
    }
)
"""What one of a source's units is in ours, by our unit."""

_DCGM_FACTORS = {
    203: 0.01,
    204: 0.01,
    250: MIB,
    251: MIB,
    252: MIB,
    253: MIB,
    449: 1e6,
}  # %, MiB, MB/s; the rest is ours
_SMI_FACTORS = {"ratio": 0.01, "bytes": MIB, "ns": 1e3}  # %, MiB, us

_BLANK_INT32 = (2_147_483_632, 2_147_483_635)
_BLANK_INT64 = 9.2233720368547e18  # every int64 blank, also after a way through float64
_BLANK_FP64 = (140_737_488_355_328.0, 140_737_488_355_331.0)

_HEADER = re.compile(r"(.*?)\s*[\[(]\s*([^\])]+?)\s*[\])]\s*")
_NUMBER = r"^([-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*([a-zA-Zµ°%/]*)$"
_WORDS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("active", "yes", "true", "enabled", "pending"), "1"),
        **dict.fromkeys(("not active", "no", "false", "disabled"), "0"),
    }
)
_BY_SMI: Mapping[str, Metric] = MappingProxyType({name: m for m in reversed(SAMPLED) for name in m.smi_query})
_BY_NAME: Mapping[str, Metric] = MappingProxyType({m.name: m for m in SAMPLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricColumn:
    """A column of a file that is a metric: `factor` makes its numbers ours where a cell names no unit."""

    column: str
    metric: Metric
    factor: float
    preference: int  #: of two columns with the same metric the lower one counts


def metric_column(column: str) -> MetricColumn | None:
    """The sampled metric that a header names, None if it names none: `sm_clock_mhz`, `DCGM_FI_DEV_GPU_TEMP`, `150`,
    `temperature.gpu`, `clocks.sm [MHz]`."""
    match = _HEADER.fullmatch(column.strip())
    base, unit = (match[1].strip(), match[2].lower()) if match else (column.strip(), "")
    metric, factor, preference = _named(base)
    if metric is None:
        return None
    if unit:
        factor = UNITS.get(metric.unit, {}).get(unit, factor)
    return MetricColumn(column=column, metric=metric, factor=factor, preference=preference)


def _named(base: str) -> tuple[Metric | None, float, int]:
    if base in _BY_NAME:
        return _BY_NAME[base], 1, 0
    upper = base.upper()
    number = upper.removeprefix("DCGM_FI_").removeprefix("DCGM_")
    found = BY_DCGM_NAME.get(upper) or BY_DCGM_NAME.get("DCGM_FI_" + upper)
    if found is None and number.isascii() and number.isdigit():
        found = BY_DCGM_ID.get(int(number[:6]))
    if found is not None and found.name in _BY_NAME:
        return found, _DCGM_FACTORS.get(found.dcgm_id or 0, 1), 1
    smi = _BY_SMI.get(base.lower())
    if smi is not None:
        return smi, _SMI_FACTORS.get(smi.unit, 1), 2 + smi.smi_query.index(base.lower())
    return None, 1, 0


def metric_columns(columns: Sequence[str]) -> tuple[list[MetricColumn], list[str]]:
    """The metrics of a file, preferred columns first, and the columns that are none."""
    found = [(column, metric_column(column)) for column in columns]
    metrics = [metric for _, metric in found if metric is not None]
    return sorted(metrics, key=lambda m: m.preference), [column for column, metric in found if metric is None]


def converted(cells: pl.Series, source: MetricColumn) -> pl.DataFrame:
    """`value` in the metric's own type and unit, and `reason` why a cell with something in it has no value.

    Blanks of DCGM and of nvidia-smi are plain nulls: unsupported is no error. Reasons: not_a_number, unknown_unit,
    out_of_range. Whole numbers of 64 bits stay exact.
    """
    metric = source.metric
    work = _parsed(cells, source) if cells.dtype == pl.String else _numeric(cells, source)
    number, whole = pl.col("number"), pl.col("whole")
    blank = (number.abs() >= _BLANK_INT64) | number.is_between(*_BLANK_FP64)
    if metric.type not in ("uint64", "int64"):
        blank = blank | number.is_between(*_BLANK_INT32)
    work = work.with_columns(number=pl.when(~blank | number.is_null()).then(number), blank=blank.fill_null(value=False))
    ours = number * pl.col("factor")
    low, high = metric.low, metric.high
    inside = (pl.lit(value=True) if low is None else ours >= low) & (
        pl.lit(value=True) if high is None else ours <= high
    )
    typed = ours if metric.type.startswith("float") else ours.round()
    value = typed.cast(dtype(metric.type), strict=False)
    if metric.type == "uint64":
        value = pl.when((pl.col("factor") == 1) & whole.is_not_null()).then(whole).otherwise(value)
    work = work.with_columns(value=pl.when(inside & ~pl.col("blank")).then(value).cast(dtype(metric.type)))
    reason = (
        pl.when(pl.col("blank") | pl.col("missing"))
        .then(None)
        .when(pl.col("factor").is_null())
        .then(pl.lit("unknown_unit"))
        .when(number.is_null())
        .then(pl.lit("not_a_number"))
        .when(pl.col("value").is_null())
        .then(pl.lit("out_of_range"))
    )
    return work.select("value", reason=reason)


def _numeric(cells: pl.Series, source: MetricColumn) -> pl.DataFrame:
    """number, whole, factor, missing of a column that is numbers already; a nested one is no number."""
    known = cells.dtype.is_numeric() or cells.dtype == pl.Boolean
    number = cells.cast(pl.Float64) if known else pl.Series([None] * len(cells), dtype=pl.Float64)
    whole = cells.cast(pl.UInt64, strict=False) if cells.dtype.is_integer() else number.cast(pl.UInt64, strict=False)
    missing = cells.is_null() | (number.is_nan().fill_null(value=False))
    return pl.DataFrame({"number": number.fill_nan(None), "whole": whole, "missing": missing}).with_columns(
        factor=pl.lit(float(source.factor))
    )


def _parsed(cells: pl.Series, source: MetricColumn) -> pl.DataFrame:
    """number, whole, factor, missing of text cells: `85.12 W`, `0x40`, `P0`, `Not Active`, `[N/A]`."""
    metric = source.metric
    lower = cells.str.strip_chars().str.to_lowercase()
    missing = lower.is_null() | lower.is_in(list(MISSING))
    text = lower.replace(dict(_WORDS)) if metric.unit == "bool" else lower
    if metric.name == "performance_state":
        text = text.str.replace(r"^p([0-9]+)$", "$1")
    if metric.unit == "bits":
        digits = text.str.extract(r"^0x([0-9a-f]{1,16})$")
        hexadecimal = digits.str.to_integer(base=16, strict=False).cast(pl.String)
        text = hexadecimal.zip_with(hexadecimal.is_not_null(), text)
    parts = pl.DataFrame({"text": text}).select(
        digits=pl.col("text").str.extract(_NUMBER, 1), unit=pl.col("text").str.extract(_NUMBER, 2)
    )
    factors = {"": float(source.factor), **{unit: float(f) for unit, f in UNITS.get(metric.unit, {}).items()}}
    unit = parts["unit"].fill_null("").replace_strict(factors, default=None, return_dtype=pl.Float64)
    return pl.DataFrame(
        {
            "number": parts["digits"].cast(pl.Float64, strict=False),
            "whole": parts["digits"].cast(pl.UInt64, strict=False),
            "factor": unit,
            "missing": missing,
        }
    )
