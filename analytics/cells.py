"""Cells of strangers' files as values of ours: times, numbers, names; null for whatever says "there is none".

To accept another way to write a time: one line in `_LOCAL_FORMATS`. To accept another sentinel: `MISSING`.
"""

import polars as pl

MISSING: tuple[str, ...] = (
    *("", "-", "--", "n/a", "na", "nan", "null", "none", "unknown", "[n/a]", "[not supported]", "not supported"),
    *("[insufficient permissions]", "[unknown error]", "[requested functionality has been deprecated]"),
    *("gpu is lost", "[gpu is lost]", "<<<null>>>", "<<<not_found>>>", "<<<not_supported>>>", "<<<not_perm>>>"),
)
"""Texts, in lower case, that stand for no value in nvidia-smi, DCGM, pandas and spreadsheets."""

EARLIEST_NS = 946_684_800 * 10**9
"""1 January 2000: a smaller time is a duration, a row number or a clock that was never set."""

LATEST_NS = 4_102_444_800 * 10**9
"""1 January 2100."""

_LOCAL_FORMATS = ("%Y-%m-%d %H:%M:%S%.f", "%Y/%m/%d %H:%M:%S%.f", "%Y-%m-%d %H:%M", "%Y/%m/%d %H:%M")
_DATE_FORMATS = ("%Y-%m-%d", "%Y/%m/%d")


def texts(column: pl.Series) -> pl.Series:
    """Trimmed texts, null where the cell stands for no value; integral floats are written without `.0`."""
    if column.dtype.is_float():
        whole = column.cast(pl.Int64, strict=False)
        column = pl.select(
            pl.when(pl.lit(column) == pl.lit(whole))
            .then(pl.lit(whole).cast(pl.String))
            .otherwise(pl.lit(column.fill_nan(None)).cast(pl.String))
        ).to_series()
    stripped = column.cast(pl.String).str.strip_chars()
    return (
        stripped.to_frame("x")
        .select(pl.when(~pl.col("x").str.to_lowercase().is_in(MISSING)).then("x").alias(column.name))
        .to_series()
    )


def numbers(column: pl.Series) -> pl.Series:
    """Float64, null where the cell is no finite number. Decimal commas (`12,5`) are read as such."""
    if column.dtype == pl.String:
        found = texts(column).str.replace(r"^([-+]?[0-9]+),([0-9]+)$", "$1.$2").cast(pl.Float64, strict=False)
    elif column.dtype.is_numeric() or column.dtype == pl.Boolean:
        found = column.cast(pl.Float64)
    else:
        found = pl.Series(column.name, [None] * len(column), dtype=pl.Float64)
    return found.to_frame("x").select(pl.when(pl.col("x").is_finite()).then("x").alias(column.name)).to_series()


def times_ns(column: pl.Series) -> pl.Series:
    """Int64 nanoseconds since 1970 UTC; null where the cell is no time between 2000 and 2100.

    Numbers are Unix seconds, milliseconds, microseconds or nanoseconds by their size. Texts are ISO 8601, with or
    without an offset, or nvidia-smi's `2026/05/01 12:34:56.789`; a time without an offset is taken as UTC.
    """
    if column.dtype in (pl.Date, pl.Datetime):
        moments = column.cast(pl.Datetime("ns")) if column.dtype == pl.Date else column.dt.cast_time_unit("ns")
        if isinstance(moments.dtype, pl.Datetime) and moments.dtype.time_zone is not None:
            moments = moments.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
        found = moments.cast(pl.Int64)
    elif column.dtype == pl.String:
        found = _text_times(texts(column))
    elif column.dtype.is_integer():
        found = _scaled(column.cast(pl.Int64, strict=False), column.cast(pl.Float64))
    elif column.dtype.is_numeric():
        found = _scaled(pl.Series([None] * len(column), dtype=pl.Int64), column.cast(pl.Float64))
    else:
        found = pl.Series([None] * len(column), dtype=pl.Int64)
    plausible = found.is_between(EARLIEST_NS, LATEST_NS)
    return found.to_frame("x").select(pl.when(plausible).then("x").alias(column.name)).to_series()


def _scaled(whole: pl.Series, number: pl.Series) -> pl.Series:
    """Unix times of any of the four units, exact where they are integers."""
    size = pl.col("number").abs()
    factor = (
        pl.when(size < 9e9)  # seconds until 2255; milliseconds since April 1970
        .then(pl.lit(10**9, pl.Int64))
        .when(size < 9e12)
        .then(pl.lit(10**6, pl.Int64))
        .when(size < 9e15)
        .then(pl.lit(1_000, pl.Int64))
        .otherwise(pl.lit(1, pl.Int64))
    )
    exact = pl.col("whole") * factor
    rough = (pl.col("number") * factor).cast(pl.Int64, strict=False)
    return pl.DataFrame({"whole": whole, "number": number}).select(pl.coalesce(exact, rough)).to_series()


def _text_times(text: pl.Series) -> pl.Series:
    whole, number = text.cast(pl.Int64, strict=False), text.cast(pl.Float64, strict=False)
    found = [_scaled(whole, number)]
    if number.null_count() > text.null_count():
        spaced = text.str.replace(r"^([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt]", "$1 ")
        zoned = spaced.str.replace(r"[Zz]$", "+00:00").str.replace(r" ([-+][0-9])", "$1")
        found.append(
            zoned.str.to_datetime("%Y-%m-%d %H:%M:%S%.f%#z", time_unit="ns", time_zone="UTC", strict=False).cast(
                pl.Int64
            )
        )
        found += [spaced.str.to_datetime(one, time_unit="ns", strict=False).cast(pl.Int64) for one in _LOCAL_FORMATS]
        dates = [spaced.str.to_date(one, strict=False) for one in _DATE_FORMATS]
        found += [day.cast(pl.Datetime("ns")).cast(pl.Int64) for day in dates]
    return pl.DataFrame([one.alias(str(i)) for i, one in enumerate(found)]).select(pl.coalesce(pl.all())).to_series()
