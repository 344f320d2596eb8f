"""Files of rows (Parquet, CSV, NDJSON, the text ones also gzipped) read in chunks of bounded size.

To read a new format: one function that yields frames with the column `ROW`, one branch in `scan`.
"""

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from telemetry.errors import BadInput

ROW = "__row__"
"""Column of every chunk: the row's number in its file, the first row of data being 1."""

CHUNK_ROWS = 65_536
"""Rows of a chunk; a CSV chunk is `BLOCK_BYTES` of text instead."""

BLOCK_BYTES = 8 << 20
MAX_LINE_BYTES = 1 << 20
_SEPARATORS = (",", ";", "\t", "|")
_SNIFF_BYTES = 64 << 10

Format = Literal["parquet", "csv", "ndjson"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedRow:
    """A row, or values of a column, that could not be used: where, which rule, and what to know about it.

    `row` counts rows of data from 1; 0 speaks of the file as a whole.
    """

    row: int
    rule: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """A file of rows. `total_rows` is for progress, None where only reading tells.

    `rejected` fills while `chunks` is read: lines that are no rows. Columns without a name are called column_1,
    column_2 by their place; CSV cells are text, empty ones null.
    """

    path: Path
    format: Format
    columns: tuple[str, ...]
    total_rows: int | None
    gzipped: bool = False
    separator: str = ","
    rejected: list[RejectedRow] = field(default_factory=list)

    def chunks(self) -> Iterator[pl.DataFrame]:
        """The rows in file order, each chunk with the column `ROW`; raises BadInput where the file breaks off."""
        self.rejected.clear()
        if self.format == "parquet":
            yield from _parquet(self.path)
        elif self.format == "csv":
            yield from _csv(self)
        else:
            yield from _ndjson(self)


def scan(path: Path) -> TableFile:
    """What a file holds, told by its content, not by its name; reads the header only.

    Raises BadInput for an empty file, one without a header, a spreadsheet, text that is not UTF-8, and the like.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise BadInput("unreadable", f"{path}: {error.strerror or error}") from None
    if magic == b"PAR1":
        try:
            with pyarrow.parquet.ParquetFile(path) as parquet:
                names, total = tuple(parquet.schema_arrow.names), int(parquet.metadata.num_rows)
        except (pa.ArrowException, OSError) as error:
            raise BadInput("bad_parquet", f"{path}: {error}") from None
        _check_columns(names, path)
        return TableFile(path=path, format="parquet", columns=names, total_rows=total)
    if magic.startswith(b"PK"):
        raise BadInput("unknown_format", f"{path} is a zip or a spreadsheet: export it as CSV or Parquet")
    gzipped = magic.startswith(b"\x1f\x8b")
    head = _head(path, gzipped)
    if not head.strip():
        raise BadInput("empty_file", f"{path} is empty")
    if head.lstrip()[0] == "{":
        keys = _first_keys(head, path)
        return TableFile(path=path, format="ndjson", columns=keys, total_rows=None, gzipped=gzipped)
    if head.lstrip()[0] == "[":
        raise BadInput("unknown_format", f"{path} is a JSON array: write one JSON object a line (jq -c '.[]')")
    header = _header_line(head)
    separator = max(_SEPARATORS, key=_outside_quotes(header).count)
    names = _names(next(csv.reader([header], delimiter=separator)))
    if all(_is_number(name) for name in names):
        raise BadInput("no_header", f"{path}: the first line {header[:80]!r} has only numbers; name the columns there")
    _check_columns(names, path)
    return TableFile(path=path, format="csv", columns=names, total_rows=None, gzipped=gzipped, separator=separator)


def _open(path: Path, gzipped: bool) -> gzip.GzipFile | io.BufferedReader:
    return gzip.open(path, "rb") if gzipped else path.open("rb")


def _head(path: Path, gzipped: bool) -> str:
    try:
        with _open(path, gzipped) as file:
            head = file.read(_SNIFF_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput("bad_gzip", f"{path}: {error}") from None
    if b"\x00" in head:
        raise BadInput("not_text", f"{path} holds NUL bytes: save it as UTF-8 text, or give Parquet")
    text = head.decode("utf-8-sig", errors="ignore" if len(head) == _SNIFF_BYTES else "replace")
    if "\ufffd" in text:
        raise BadInput("not_text", f"{path} is not UTF-8: convert it first (iconv -t utf-8)")
    return text


def _header_line(head: str) -> str:
    """The first line with text in it; a quoted name may not hold a line break."""
    return next(line for line in head.splitlines() if line.strip())


def _outside_quotes(line: str) -> str:
    return "".join(line.split('"')[::2])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _names(cells: Sequence[str]) -> tuple[str, ...]:
    """Column names: spaces around them gone, nameless ones numbered by their place, repeats numbered too."""
    names: list[str] = []
    for position, cell in enumerate(cells, start=1):
        name = cell.strip().strip("\ufeff") or f"column_{position}"
        while name in names:
            name = f"{name}_{position}"
        names.append(name)
    return tuple(names)


def _check_columns(names: Sequence[str], path: Path) -> None:
    if not names:
        raise BadInput("no_header", f"{path} has no columns")
    if len(set(names)) != len(names) or ROW in names:
        raise BadInput("bad_header", f"{path} names a column twice or {ROW!r}")


def _parquet(path: Path) -> Iterator[pl.DataFrame]:
    row = 1
    try:
        with pyarrow.parquet.ParquetFile(path) as parquet:
            for batch in parquet.iter_batches(batch_size=CHUNK_ROWS, use_threads=False):
                frame = pl.DataFrame(pa.Table.from_batches([batch]))
                yield frame.with_columns(pl.int_range(row, row + frame.height, dtype=pl.Int64).alias(ROW))
                row += frame.height
    except (pa.ArrowException, OSError) as error:
        raise BadInput("bad_parquet", f"{path}: after row {row - 1}: {error}") from None


def _csv(table: TableFile) -> Iterator[pl.DataFrame]:
    """Text cells. Lines with too many or too few cells are rejected; blank lines are no rows."""
    bad: list[int] = []

    def invalid(line: Any) -> str:
        bad.append(line.number)
        detail = f"{line.actual_columns} cells where the header has {line.expected_columns}: {str(line.text)[:120]}"
        table.rejected.append(RejectedRow(row=line.number, rule="wrong_cells", detail=detail))
        return "skip"

    text = pa.string()
    row = 1
    try:
        with _open(table.path, table.gzipped) as file:
            _skip_header(file)
            while not (ahead := file.peek(1)).strip():  # nothing or blank lines
                if not file.read(len(ahead)):
                    return  # before Arrow sees it: its readahead of nothing may outlive the process, and abort it
            reader = pyarrow.csv.open_csv(
                file,
                read_options=pyarrow.csv.ReadOptions(
                    use_threads=False, block_size=BLOCK_BYTES, column_names=list(table.columns)
                ),
                parse_options=pyarrow.csv.ParseOptions(
                    delimiter=table.separator, newlines_in_values=True, invalid_row_handler=invalid
                ),
                convert_options=pyarrow.csv.ConvertOptions(
                    column_types=dict.fromkeys(table.columns, text),
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=True,
                    null_values=[""],
                ),
            )
            with reader:
                for batch in reader:
                    frame = pl.DataFrame(pa.Table.from_batches([batch]))
                    skipped = {number for number in bad if number >= row}
                    numbers: list[int] = []
                    while len(numbers) < frame.height:
                        if row not in skipped:
                            numbers.append(row)
                        row += 1
                    stripped = frame.with_columns(pl.all().str.strip_chars().replace("", None))
                    yield stripped.with_columns(pl.Series(ROW, numbers, dtype=pl.Int64))
    except (pa.ArrowException, OSError, EOFError, zlib.error, UnicodeError) as error:
        if "Empty CSV file" in str(error):
            return
        raise BadInput("bad_csv", f"{table.path}: after row {row - 1}: {error}") from None


def _skip_header(file: gzip.GzipFile | io.BufferedReader) -> None:
    """Read up to the end of the header line."""
    while line := file.readline(MAX_LINE_BYTES):
        if line.decode("utf-8-sig", errors="replace").strip():
            return


def _first_keys(head: str, path: Path) -> tuple[str, ...]:
    """Keys of the objects at the head of the file."""
    names: dict[str, None] = {}
    lines = head.splitlines()
    for line in lines if len(lines) == 1 or len(head) < _SNIFF_BYTES else lines[:-1]:
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(row, dict):
            names.update(dict.fromkeys(row))
    if not names:
        raise BadInput("unknown_format", f"{path} begins with a brace, but no line of it is a JSON object")
    _check_columns(tuple(names), path)
    return tuple(names)


def _ndjson(table: TableFile) -> Iterator[pl.DataFrame]:
    rows: list[dict[str, Any]] = []
    number = 0
    try:
        with _open(table.path, table.gzipped) as file:
            while line := file.readline(MAX_LINE_BYTES):
                if not line.strip():
                    continue
                number += 1
                row = _object(line, number, table)
                if row is not None:
                    rows.append(row | {ROW: number})
                if len(rows) >= CHUNK_ROWS:
                    yield _frame(rows, table.columns)
                    rows = []
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput("bad_gzip", f"{table.path}: after row {number}: {error}") from None
    if rows:
        yield _frame(rows, table.columns)


def _object(line: bytes, number: int, table: TableFile) -> dict[str, Any] | None:
    try:
        row = orjson.loads(line.removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError as error:
        table.rejected.append(RejectedRow(row=number, rule="not_json", detail=f"{error}: {line[:80]!r}"))
        return None
    if not isinstance(row, dict):
        table.rejected.append(RejectedRow(row=number, rule="not_an_object", detail=f"{line[:80]!r}"))
        return None
    return row


def _frame(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> pl.DataFrame:
    """A frame of rows whose values may be of any kind: a column that mixes kinds becomes text."""
    names = dict.fromkeys([*columns, *(name for row in rows for name in row)])
    return pl.DataFrame([_series(name, [row.get(name) for row in rows]) for name in names])


def _series(name: str, values: Sequence[Any]) -> pl.Series:
    kinds = {type(value) for value in values if value is not None}
    if not kinds or kinds <= {bool} or kinds <= {str}:
        return pl.Series(name, values, dtype=pl.Boolean if kinds == {bool} else pl.String)
    if kinds <= {int} and all(value is None or -(2**63) <= value < 2**63 for value in values):
        return pl.Series(name, values, dtype=pl.Int64)
    if kinds <= {int} and all(value is None or value >= 0 for value in values):
        return pl.Series(name, values, dtype=pl.UInt64)
    if kinds <= {int, float}:
        return pl.Series(name, [None if value is None else float(value) for value in values], dtype=pl.Float64)
    texts = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
    return pl.Series(name, texts, dtype=pl.String)
