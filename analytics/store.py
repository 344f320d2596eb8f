"""The store: one DuckDB file that one process owns, read by many threads and written by one at a time.

To add a table: `telemetry/tables.py`, a migration, and a line in `_NEWEST_BY` or `_TIME` that says how rows are kept.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

import duckdb
import polars as pl

from analytics import incoming, rollups
from analytics.schema import migrate
from telemetry.errors import StoreError
from telemetry.tables import TABLES

_TIME: Mapping[str, str] = MappingProxyType(
    {
        "windows": "window_start_ns",
        "transitions": "time_ns",
        "events": "time_ns",
        "measurements": "time_ns",
        "windows_hourly": "hour_start_ns",
        "blocks_hourly": "hour_start_ns",
    }
)
"""Tables that are only ever added to, and the column that says when."""

_KEPT_SINCE: Mapping[str, str] = MappingProxyType({**_TIME, "jobs": "seen_ns"})
"""Tables that retention shortens, and the column that it goes by."""

_NEWEST_BY: Mapping[str, str | None] = MappingProxyType(
    {
        "scores": "as_of_ns",
        "gpus": "seen_ns",
        "nodes": "seen_ns",
        "blocks": "as_of_ns",
        "variance": "as_of_ns",
        "jobs": "seen_ns",
        "topology": None,
    }
)
"""Tables that keep one row a key: the newest by this column, the later written one among equals or without a column."""

_CHECKPOINT_ROWS = (
    500_000  #: an in-memory database frees replaced rows at a checkpoint only, and never makes one itself
)


_CHECKPOINT_AT = (
    "64MB"  #: of write-ahead log: a tenth less work than DuckDB's 16 MB at 100,000 GPUs, replayed in a second
)


class Store:
    """A DuckDB database with the published tables; None as path keeps it in memory.

    Raises StoreError, with the remedy, when the file is open in another process, is no DuckDB file, or has a newer
    schema. Reading is safe from any thread at any time; writers queue. Times are ns since 1970 in UTC throughout.
    """

    def __init__(self, path: Path | None, *, memory_limit: str = "2GB", threads: int = 1) -> None:
        self.path = path
        self._connection = _connect(path, memory_limit=memory_limit, threads=threads)
        self._writer = threading.Lock()
        self._housekeeper = threading.Lock()
        self._state = threading.Lock()
        self._version = 0
        self._changed: dict[str, int] = {}
        self._subscribers: list[Callable[[int], None]] = []
        self._unchecked_rows = 0
        try:
            migrate(self._connection)
        except (duckdb.Error, StoreError) as error:
            self._connection.close()
            raise StoreError(f"{path or 'memory'}: {error}") from error

    def places(self) -> tuple[str | None, dict[tuple[str, int], int]]:
        """The log that was read, None before the first write, and the next offset of each (topic, partition)."""
        with self.cursor() as cursor:
            log = cursor.execute("SELECT log_id FROM log").fetchall()
            rows = cursor.execute("SELECT topic, partition, next_offset FROM places").fetchall()
        return (log[0][0] if log else None), {(topic, partition): offset for topic, partition, offset in rows}

    def write(
        self,
        rows: Mapping[str, pl.DataFrame],
        *,
        deletes: Mapping[str, Sequence[str]] = MappingProxyType({}),
        log_id: str | None = None,
        offsets: Mapping[tuple[str, int], int] = MappingProxyType({}),
    ) -> None:
        """Store rows, deletions and places in the log as one transaction; the same call again changes nothing.

        Frames have the columns of `telemetry.tables` in any order; nullable ones may be absent. Deletions take the
        first key column and come before the rows. One row a key: the newest for scores, gpus, nodes, jobs, blocks and
        topology; the first one stored for windows, transitions, events, measurements. NaN becomes null, windows are
        rounded to what a sensor can tell. Another `log_id` than before forgets all offsets of the old log. Raises
        StoreError, with nothing stored.
        """
        frames = {name: incoming.prepared(name, frame) for name, frame in rows.items() if not frame.is_empty()}
        with self._writer:
            with self.transaction() as cursor:
                for name, keys in deletes.items():
                    _delete(cursor, name, keys)
                for name, frame in frames.items():
                    _store(cursor, name, frame)
                _keep_places(cursor, log_id, offsets)
            touched = {*frames, *(name for name, keys in deletes.items() if keys)}
            self._unchecked_rows += sum(frames[name].height for name in touched & frames.keys() & _NEWEST_BY.keys())
            version = self._bump(touched)
            if self.path is None and self._unchecked_rows >= _CHECKPOINT_ROWS:
                self._checkpoint()
        self._tell(version)

    def replace_topology(self, topology: pl.DataFrame) -> None:
        """Store this topology instead of the one there: a node that moved, or left, keeps no old place."""
        nodes = self.table("topology")["node"].unique().to_list()
        self.write({"topology": topology}, deletes={"topology": nodes})

    def frame(self, sql: str, parameters: Sequence[Any] = ()) -> pl.DataFrame:
        """Rows of a query of our own; parameters go where `?` or `$1` stand. Raises StoreError."""
        with self.cursor() as cursor:
            relation = cursor.sql(sql, params=list(parameters)) if parameters else cursor.sql(sql)
            if relation is None:
                raise StoreError(f"not a query: {sql[:80]}")
            return relation.pl()  # type: ignore[no-any-return]

    def table(self, name: str) -> pl.DataFrame:
        """All rows of a published table, with the polars types of `analytics.frames`, in order of its key."""
        if name not in TABLES:
            raise StoreError(f"no table {name!r}; there are {', '.join(TABLES)}")
        table = TABLES[name]
        return self.frame(f"SELECT {', '.join(table.names)} FROM {name} ORDER BY {', '.join(table.key)}")  # noqa: S608

    @property
    def version(self) -> int:
        """Grows with every write of this process; equal numbers mean equal content."""
        return self._version

    def version_of(self, *tables: str) -> int:
        """The version at which any of these tables last changed."""
        with self._state:
            return max((self._changed.get(name, 0) for name in tables), default=0)

    def subscribe(self, callback: Callable[[int], None]) -> Callable[[], None]:
        """Call back with the version after every write, in the writer's thread: be quick. Returns what ends it."""
        with self._state:
            self._subscribers.append(callback)

        def unsubscribe() -> None:
            with self._state, suppress(ValueError):
                self._subscribers.remove(callback)

        return unsubscribe

    def roll_up(self) -> int:
        """Bring `windows_hourly` and `blocks_hourly` up to date; returns how many hours were computed.

        Only hours that got windows since last time. A GPU's hour is replaced only by one of at least as many windows,
        so that windows which arrive after their hour has left the store cannot shrink it.
        """
        with self._housekeeper:
            hours = [
                hour for (hour,) in self.frame("SELECT DISTINCT hour_start_ns FROM hours_to_roll ORDER BY 1").rows()
            ]
            for hour in hours:
                with self.transaction() as cursor:
                    cursor.execute("DELETE FROM hours_to_roll WHERE hour_start_ns = ?", [hour])
                    _roll_up_hour(cursor, hour)
        if hours:
            self._tell(self._bump({table.name for table in rollups.ROLLUPS}))
        return len(hours)

    def retain(self, *, before_ns: int | Mapping[str, int]) -> dict[str, int]:
        """Delete rows older than this time and return how many, by table; roll-ups are brought up to date first.

        A number speaks of `windows`; a mapping names tables that grow with time: windows, transitions, events,
        measurements, jobs, windows_hourly, blocks_hourly. The file keeps its size and uses the space again.
        """
        limits = {"windows": before_ns} if isinstance(before_ns, int) else before_ns
        unknown = sorted(limits.keys() - _KEPT_SINCE.keys())
        if unknown:
            raise StoreError(f"no retention for {', '.join(unknown)}; there is for {', '.join(_KEPT_SINCE)}")
        self.roll_up()
        with self._housekeeper, self.transaction() as cursor:
            deleted = {
                name: _count(cursor.execute(f"DELETE FROM {name} WHERE {_KEPT_SINCE[name]} < ?", [limit]))  # noqa: S608
                for name, limit in limits.items()
            }
        gone = {name for name, count in deleted.items() if count}
        if gone:
            self._checkpoint()
            self._tell(self._bump(gone))
        return deleted

    def snapshot(self, path: Path) -> None:
        """A copy of this moment as a DuckDB file of its own, while reading and writing go on; replaces `path` at once.

        Raises StoreError if the file cannot be written; `path` is then as it was.
        """
        partial = path.with_name(path.name + ".partial")
        partial.unlink(missing_ok=True)
        with self._housekeeper, self.cursor() as cursor:
            cursor.execute(f"ATTACH '{_quoted(partial)}' AS snapshot")
            try:
                source = cursor.execute("SELECT current_database()").fetchall()[0][0]
                cursor.execute(f'COPY FROM DATABASE "{source}" TO snapshot')
            finally:
                cursor.execute("DETACH snapshot")
        partial.replace(path)

    @contextmanager
    def housekeeping(self) -> Iterator[Any]:
        """A cursor in a transaction for work that takes long, one such at a time; writes go on beside it."""
        with self._housekeeper, self.transaction() as cursor:
            yield cursor

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """A cursor in a transaction: committed at the end, rolled back by any error; DuckDB's own become StoreError."""
        with self.cursor() as cursor:
            cursor.execute("BEGIN")
            whole = False
            try:
                yield cursor
                cursor.execute("COMMIT")
                whole = True
            finally:
                if not whole:
                    with suppress(duckdb.Error):
                        cursor.execute("ROLLBACK")

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        """A connection of one's own, closed at the end: an unfinished result would keep old rows alive for ever."""
        try:
            with self._state:
                cursor = self._connection.cursor()
            try:
                yield cursor
            finally:
                cursor.close()
        except duckdb.Error as error:
            raise StoreError(f"{self.path or 'memory'}: {_first_line(error)}") from error

    def changed(self, *tables: str) -> None:
        """Say that rows of these tables were changed by a `housekeeping` transaction."""
        self._tell(self._bump(set(tables)))

    def close(self) -> None:
        """Let go of the file; later calls raise StoreError."""
        with self._writer, self._state:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _bump(self, tables: set[str]) -> int:
        with self._state:
            self._version += 1
            self._changed |= dict.fromkeys(tables, self._version)
            return self._version

    def _tell(self, version: int) -> None:
        with self._state:
            subscribers = list(self._subscribers)
        for callback in subscribers:
            callback(version)

    def _checkpoint(self) -> None:
        # Refused while another transaction runs; the next one frees the same rows.
        with suppress(StoreError), self.cursor() as cursor:
            cursor.execute("CHECKPOINT")
            self._unchecked_rows = 0


def _connect(path: Path | None, *, memory_limit: str, threads: int) -> duckdb.DuckDBPyConnection:
    config: dict[str, Any] = {"memory_limit": memory_limit, "threads": threads}
    try:
        connection = duckdb.connect(str(path) if path else ":memory:", config=config)
    except duckdb.Error as error:
        text = _first_line(error)
        if "lock" in text and "Conflicting" in text:
            raise StoreError(
                f"{path} is open in another process, and only one can have it ({text}). Ask that process over its HTTP "
                "API, open a copy made with `Store.snapshot`, or stop it before starting another on this file"
            ) from None
        if "storage version" in text or "newer version" in text:
            raise StoreError(f"{path} was written by another version of DuckDB: {text}") from None
        raise StoreError(f"cannot open {path or 'a store in memory'}: {text}") from None
    connection.execute("LOAD icu")
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    connection.execute(f"SET GLOBAL checkpoint_threshold = '{_CHECKPOINT_AT}'")
    return connection


def _delete(cursor: Any, name: str, keys: Sequence[str]) -> None:
    if name not in TABLES:
        raise StoreError(f"no table {name!r}; there are {', '.join(TABLES)}")
    if keys:
        column = TABLES[name].key[0]
        cursor.execute(f"DELETE FROM {name} WHERE {column} IN (SELECT unnest(?::VARCHAR[]))", [list(keys)])  # noqa: S608


def _store(cursor: Any, name: str, frame: pl.DataFrame) -> None:
    """Insert what is not there yet; `frame` has one row a key, in order of time."""
    cursor.register("incoming", frame)
    key = ", ".join(TABLES[name].key)
    present = name
    parameters: list[Any] = []
    if name in _TIME:
        # Equal keys have equal times, so zone maps keep the search to the rows of these times.
        time = _TIME[name]
        present = f"(SELECT {key} FROM {name} WHERE {time} BETWEEN ? AND ?)"  # noqa: S608
        parameters = [frame[time].min(), frame[time].max()]
    else:
        newest = _NEWEST_BY[name]
        same = " AND ".join(f"old.{column} = new.{column}" for column in TABLES[name].key)
        newer = f" AND new.{newest} >= old.{newest}" if newest else ""
        cursor.execute(f"DELETE FROM {name} old USING incoming new WHERE {same}{newer}")  # noqa: S608
    insert = f"INSERT INTO {name} SELECT new.* FROM incoming new ANTI JOIN {present} USING ({key})"  # noqa: S608
    added = _count(cursor.execute(insert, parameters))
    if name == "windows" and added:
        cursor.execute("INSERT INTO hours_to_roll SELECT DISTINCT hour_of(window_start_ns) FROM incoming")
    cursor.unregister("incoming")


def _keep_places(cursor: Any, log_id: str | None, offsets: Mapping[tuple[str, int], int]) -> None:
    if log_id is not None:
        known = cursor.execute("SELECT log_id FROM log").fetchall()
        if known != [(log_id,)]:
            cursor.execute("DELETE FROM places")
            cursor.execute("DELETE FROM log")
            cursor.execute("INSERT INTO log VALUES (?)", [log_id])
    for (topic, partition), offset in offsets.items():
        cursor.execute("DELETE FROM places WHERE topic = ? AND partition = ?", [topic, partition])
        cursor.execute("INSERT INTO places VALUES (?, ?, ?)", [topic, partition, offset])


def _roll_up_hour(cursor: Any, hour: int) -> None:
    cursor.execute(f"CREATE TEMP TABLE hour AS {rollups.hour_of_gpus()}", [hour, hour + rollups.HOUR_NS])
    cursor.execute(
        "DELETE FROM windows_hourly old USING hour new "
        "WHERE old.hour_start_ns = ? AND old.gpu_uuid = new.gpu_uuid AND new.windows >= old.windows",
        [hour],
    )
    cursor.execute(
        "INSERT INTO windows_hourly SELECT hour.* FROM hour "
        "ANTI JOIN (SELECT gpu_uuid FROM windows_hourly WHERE hour_start_ns = ?) USING (gpu_uuid)",
        [hour],
    )
    cursor.execute("DROP TABLE hour")
    cursor.execute("DELETE FROM blocks_hourly WHERE hour_start_ns = ?", [hour])
    cursor.execute(f"INSERT INTO blocks_hourly {rollups.hour_of_blocks()}", [hour])


def _count(result: Any) -> int:
    return int(result.fetchall()[0][0])


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
