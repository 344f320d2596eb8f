"""The archive: what leaves the store is in Parquet first."""

import threading
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from support.store import DAY, MINUTE, START, nodes, topology, windows

from analytics.archive import archive
from analytics.store import Store
from telemetry.errors import StoreError
from telemetry.tables import WINDOWS


@pytest.fixture
def store() -> Iterator[Store]:
    """Two days of windows of three nodes: one at a site by topology, one by its own word, one that nobody placed."""
    with Store(None) as opened:
        opened.write(
            {
                "topology": topology({"n1": [("rack", "r1"), ("site", "north/1 é")]}),
                "nodes": nodes([{"node": "n2", "place": '[["site","south"]]'}, {"node": "n3"}]),
                "windows": windows(
                    [
                        {"gpu_uuid": f"GPU-{node}", "node": node, "window_start_ns": START + i * DAY // 2}
                        for node in ("n1", "n2", "n3")
                        for i in range(4)
                    ]
                ),
            }
        )
        yield opened


def test_whole_days_move_to_parquet_by_site_and_day(store: Store, tmp_path: Path) -> None:
    """Days that have ended leave the store for files that any engine reads by their Hive layout."""
    written = archive(store, tmp_path, before_ns=START + DAY + 7 * MINUTE)
    assert [str(path.relative_to(tmp_path)) for path in written] == [
        "windows/site=default/day=2026-01-01/part.parquet",
        "windows/site=north%2F1%20%C3%A9/day=2026-01-01/part.parquet",
        "windows/site=south/day=2026-01-01/part.parquet",
    ]
    assert store.table("windows").height == 6
    read = pl.scan_parquet(
        tmp_path / "windows/**/*.parquet", hive_partitioning=True, missing_columns="insert"
    ).collect()
    assert sorted(read.group_by("site").len().rows()) == [("default", 2), ("north/1 é", 2), ("south", 2)]
    assert set(read.columns) == {*WINDOWS.names, "site", "day"}
    files = f"read_parquet('{tmp_path}/windows/*/*/*.parquet')"
    north = f"SELECT count(*) FROM {files} WHERE site = 'north/1 é' AND day = '2026-01-01'"
    assert store.frame(north).item() == 2
    assert store.frame("SELECT sum(windows)::BIGINT FROM blocks_hourly WHERE level = 'fleet'").item() == 12
    assert not list(tmp_path.rglob("*.partial"))
    assert archive(store, tmp_path, before_ns=START + DAY) == [], "nothing is left to do"


def test_a_late_window_joins_the_file_of_its_day(store: Store, tmp_path: Path) -> None:
    """Rows that come after their day was archived are merged into its file, each key once."""
    archive(store, tmp_path, before_ns=START + DAY)
    late = [{"gpu_uuid": "GPU-n2", "node": "n2", "window_start_ns": START + i * MINUTE} for i in range(3)]
    store.write({"windows": windows(late)})
    archive(store, tmp_path, before_ns=START + DAY)
    day = pl.read_parquet(tmp_path / "windows/site=south/day=2026-01-01/part.parquet", hive_partitioning=False)
    assert day.select("gpu_uuid", "window_start_ns").sort("window_start_ns").rows() == [
        ("GPU-n2", START), ("GPU-n2", START + MINUTE), ("GPU-n2", START + 2 * MINUTE), ("GPU-n2", START + DAY // 2),
    ]  # fmt: skip
    assert day.columns == list(WINDOWS.names)


def test_a_cut_between_file_and_store_loses_and_doubles_nothing(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the process dies after the file is in place, the rows are still in the store, and the next run is clean."""

    class Cut(BaseException):
        """The process dies here."""

    replace = Path.replace

    def dying(self: Path, target: Path) -> Path:
        replace(self, target)
        raise Cut

    monkeypatch.setattr(Path, "replace", dying)
    with pytest.raises(Cut):
        archive(store, tmp_path, before_ns=START + 2 * DAY)
    monkeypatch.undo()
    assert store.table("windows").height == 12
    archive(store, tmp_path, before_ns=START + 2 * DAY)
    assert store.table("windows").is_empty()
    assert pl.read_parquet(tmp_path / "windows/**/*.parquet", hive_partitioning=True).height == 12


def test_a_folder_that_cannot_be_written_keeps_the_rows(store: Store, tmp_path: Path) -> None:
    """Without a place for the file nothing leaves the store, and the error names the place."""
    (tmp_path / "windows").write_text("in the way")
    with pytest.raises(StoreError, match="still in the store"):
        archive(store, tmp_path, before_ns=START + 2 * DAY)
    assert store.table("windows").height == 12


def test_windows_that_arrive_while_the_archive_runs_are_in_one_place(store: Store, tmp_path: Path) -> None:
    """Late rows written beside a running archive are in the files or in the store, each once, none lost."""
    total = 60
    done = threading.Event()

    def write() -> None:
        for i in range(total):
            late = {"gpu_uuid": "GPU-late", "node": "n3", "window_start_ns": START + i * MINUTE}
            store.write({"windows": windows([late])})
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        archive(store, tmp_path, before_ns=START + DAY)
    writer.join()
    files = pl.read_parquet(tmp_path / "windows/**/*.parquet", hive_partitioning=False)
    everywhere = pl.concat([files, store.table("windows")]).filter(gpu_uuid="GPU-late")["window_start_ns"]
    assert sorted(everywhere) == [START + i * MINUTE for i in range(total)]
