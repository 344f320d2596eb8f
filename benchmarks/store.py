"""The store at 100,000 GPUs: one window in, and the questions that people and programs ask.

To time another question: one line in `_QUESTIONS`.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import duckdb
import polars as pl

from analytics.store import Store
from benchmarks import Figure
from benchmarks.scored import START_NS, WINDOW_NS, scores, topology, uuids, windows
from benchmarks.timing import milliseconds, repeats

_LAST = "(SELECT max(window_start_ns) FROM windows)"
# name: (SQL, known median in ms, of what)
_QUESTIONS: Mapping[str, tuple[str, float | None, str]] = {
    "all scores, as the API reads them at each change": ("FROM scores ORDER BY gpu_uuid", None, ""),
    "100 fastest GPUs by score": (
        "SELECT gpu_uuid, node, tier, speed FROM scores WHERE tier <> 'unknown' ORDER BY speed DESC LIMIT 100",
        None,
        "",
    ),
    "100 fastest GPUs of the last window": (
        f"SELECT gpu_uuid, effective_clock_mhz FROM windows WHERE window_start_ns = {_LAST} "
        "ORDER BY effective_clock_mhz DESC LIMIT 100",
        36.0,
        "7 days in a file, one thread",
    ),
    "one GPU's last hour": (
        "FROM windows WHERE gpu_uuid = $1 AND window_start_ns > $2 ORDER BY window_start_ns",
        None,
        "",
    ),
    "last 60 windows by block": (
        "SELECT t.value, w.window_start_ns, avg(effective_clock_mhz), sum(thermal_throttle_s) FROM windows w "
        "JOIN topology t ON t.node = w.node AND t.level = 'block' WHERE window_start_ns > $2 GROUP BY ALL",
        65.0,
        "block kept in the row, one thread",
    ),
}


def figures(*, quick: bool) -> Iterator[Figure]:
    """Sixty windows go in one after the other, as the materialiser writes them; then the questions."""
    gpus, count = (10_000, 12) if quick else (100_000, 60)
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "store.duckdb", memory_limit="4GB") as store:
        yield from _written(store, gpus, count, Path(folder))
        told = scores(gpus)
        found = repeats(lambda: store.write({"scores": told}), 5)
        yield Figure(
            name=f"replace {gpus:,} scores, state included",
            unit="ms",
            values=milliseconds(found.wall_s),
            more_is_better=False,
        )
        store.write({"topology": topology(gpus)})
        one = uuids(gpus)[gpus // 2]
        since = START_NS + (count - 61) * WINDOW_NS
        for name, (sql, reference, of) in _QUESTIONS.items():
            parameters = [value for value, mark in ((one, "$1"), (since, "$2")) if mark in sql]
            text = sql if "$1" in sql else sql.replace("$2", "$1")
            found = repeats(_asked(store, text, parameters), 5 if quick else 9)
            yield Figure(
                name=name,
                unit="ms",
                values=milliseconds(found.wall_s),
                more_is_better=False,
                reference=reference if not quick else None,
                reference_of=of,
            )


def _written(store: Store, gpus: int, count: int, folder: Path) -> Iterator[Figure]:
    names = uuids(gpus)
    ours, plain = [], []
    beside = duckdb.connect(str(folder / "plain.duckdb"), config={"threads": 1})
    for at in range(count):
        rows = windows(gpus, at=at, names=names)
        start = time.perf_counter()
        store.write({"windows": rows}, log_id="bench", offsets={("isotach.windows", 0): at + 1})
        ours.append(time.perf_counter() - start)
        if at < 6:  # enough to compare with; the disk is for ours
            plain.append(_plain(beside, rows, first=not at))
    beside.close()
    yield Figure(
        name=f"write a window of {gpus:,} GPUs x 47 columns, checked, once each, with its offset",
        unit="ms",
        values=milliseconds(ours),
        more_is_better=False,
        alternative="bare INSERT without key, checks or rounding",
        alternative_values=milliseconds(plain),
        reference=None if gpus < 100_000 else 131.0,
        reference_of="bare INSERT of 45 rounded columns",
    )
    again = windows(gpus, at=count - 1, names=names)
    found = repeats(lambda: store.write({"windows": again}), 5)
    yield Figure(
        name="write the same window again: nothing changes",
        unit="ms",
        values=milliseconds(found.wall_s),
        more_is_better=False,
    )
    with store.cursor() as cursor:
        cursor.execute("CHECKPOINT")
    size = (folder / "store.duckdb").stat().st_size / (gpus * count)
    yield Figure(
        name="a window row on disk",
        unit="bytes",
        values=[size],
        more_is_better=False,
        reference=105.0,
        reference_of="45 rounded columns",
    )


def _plain(connection: duckdb.DuckDBPyConnection, incoming: pl.DataFrame, *, first: bool) -> float:
    start = time.perf_counter()
    connection.register("incoming", incoming)
    connection.execute("CREATE TABLE plain AS FROM incoming" if first else "INSERT INTO plain FROM incoming").fetchall()
    connection.unregister("incoming")
    return time.perf_counter() - start


def _asked(store: Store, sql: str, parameters: list[str | int]) -> Callable[[], object]:
    return lambda: store.frame(sql, parameters)
