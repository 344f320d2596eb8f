"""The archive: windows as Parquet by site and UTC day, for any engine that reads Hive layout.

To archive another table: its folder name and its time column here, and a line in docs/store.md.
"""

import os
import shutil
from pathlib import Path
from urllib.parse import quote

from analytics.rollups import DAY_NS
from analytics.store import Store
from telemetry.errors import StoreError

DEFAULT_SITE = "default"  #: of nodes whose topology has no level `site`
_SITES = "SELECT node, min(value) AS site FROM node_levels WHERE level = 'site' GROUP BY node"
_NAMED = f"(SELECT w.*, coalesce(s.site, '{DEFAULT_SITE}') AS site_ FROM windows w LEFT JOIN ({_SITES}) s USING (node))"  # noqa: S608


def archive(store: Store, folder: Path, before_ns: int) -> list[Path]:
    """Move the windows of every UTC day that ended at or before this time into Parquet; returns the files written.

    `folder/windows/site=S/day=YYYY-MM-DD/part.parquet`, sorted by time, zstd; site and day are in the path. A file is
    written beside its place, flushed, counted and renamed before its rows leave the store, so a cut at any moment
    loses nothing; rows that arrive after their day was archived are merged into its file, one row a key. Roll-ups stay
    in the store. Raises StoreError if a file cannot be written; the days before it are done.
    """
    store.roll_up()
    end = before_ns - before_ns % DAY_NS
    parts = store.frame(
        f"SELECT DISTINCT site_ AS site, window_start_ns - window_start_ns % {DAY_NS} AS day_ns "  # noqa: S608
        f"FROM {_NAMED} WHERE window_start_ns < ? ORDER BY day_ns, site",
        [end],
    )
    written = [_part(store, folder, site, day_ns) for site, day_ns in parts.rows()]
    if written:
        store.changed("windows")
    return written


def _part(store: Store, folder: Path, site: str, day_ns: int) -> Path:
    day = store.frame("SELECT strftime(day_of(?::BIGINT), '%Y-%m-%d') AS day", [day_ns]).item()
    place = folder / "windows" / f"site={quote(site, safe='')}" / f"day={day}"
    path, partial = place / "part.parquet", place / "part.parquet.partial"
    try:
        place.mkdir(parents=True, exist_ok=True)
        _check_space(place)
        with store.housekeeping() as cursor:
            # One snapshot for copy and deletion: rows that arrive meanwhile are in neither, and wait for the next time.
            cursor.execute(
                f"CREATE TEMP TABLE leaving AS SELECT gpu_uuid, window_start_ns FROM {_NAMED} "  # noqa: S608
                "WHERE window_start_ns >= ? AND window_start_ns < ? AND site_ = ?",
                [day_ns, day_ns + DAY_NS, site],
            )
            rows = "SELECT w.* FROM windows w SEMI JOIN leaving USING (gpu_uuid, window_start_ns)"
            if path.exists():
                old = f"read_parquet('{_quoted(path)}', hive_partitioning = false)"
                rows = (
                    f"SELECT * FROM {old} UNION ALL BY NAME ({rows} ANTI JOIN {old} USING (gpu_uuid, window_start_ns))"  # noqa: S608
                )
            cursor.execute(
                f"COPY (SELECT * FROM ({rows}) ORDER BY window_start_ns, node, gpu_uuid) "  # noqa: S608
                f"TO '{_quoted(partial)}' (FORMAT parquet, COMPRESSION zstd)"
            )
            _verify(cursor, partial)
            _flush(partial)
            partial.replace(path)
            _flush(place)
            cursor.execute(
                "DELETE FROM windows USING leaving l "
                "WHERE windows.gpu_uuid = l.gpu_uuid AND windows.window_start_ns = l.window_start_ns "
                "AND windows.window_start_ns >= ? AND windows.window_start_ns < ?",
                [day_ns, day_ns + DAY_NS],
            )
            cursor.execute("DROP TABLE leaving")
    except OSError as error:
        raise StoreError(f"cannot archive to {path}: {error}; its rows are still in the store") from error
    return path


def _verify(cursor: object, partial: Path) -> None:
    """Every row that is to leave can be read back from the file; raises StoreError."""
    missing = cursor.execute(  # type: ignore[attr-defined]
        f"SELECT count(*) FROM leaving ANTI JOIN read_parquet('{_quoted(partial)}', hive_partitioning = false) "  # noqa: S608
        "USING (gpu_uuid, window_start_ns)"
    ).fetchall()[0][0]
    if missing:
        raise StoreError(f"{partial} lacks {missing} rows after it was written; they are still in the store")


def _check_space(place: Path, *, least: int = 64 << 20) -> None:
    free = shutil.disk_usage(place).free
    if free < least:
        raise StoreError(f"{place} has {free} bytes free, {least} are needed; its rows are still in the store")


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")
