"""The store: one transaction a write, one row a key, one process a file."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.store import (
    DAY,
    HOUR,
    MINUTE,
    START,
    events,
    gpus,
    jobs,
    measurements,
    nodes,
    scores,
    topology,
    transitions,
    windows,
)

from analytics import schema
from analytics.frames import schema as types_of
from analytics.store import Store
from telemetry.errors import StoreError
from telemetry.tables import TABLES

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def store() -> Iterator[Store]:
    """An empty store in memory."""
    with Store(None) as opened:
        yield opened


def test_a_job_is_one_row_until_it_is_too_old(store: Store) -> None:
    """What was seen last stays, however often and in which order it comes; retention goes by when it was seen."""
    first, last = {"seen_ns": START}, {"seen_ns": START + HOUR, "ended": True}
    for row in (last, first, last, {"job_id": "8", "seen_ns": START + DAY}):
        store.write({"jobs": jobs([row])})
    kept = store.table("jobs").select("job_id", "seen_ns", "ended").rows()
    assert kept == [("7", START + HOUR, True), ("8", START + DAY, False)]
    assert store.retain(before_ns={"jobs": START + DAY}) == {"jobs": 1}
    assert store.table("jobs")["job_id"].to_list() == ["8"]


@pytest.mark.parametrize("table", schema.DOCUMENTED, ids=lambda table: table.name)
def test_the_database_has_the_columns_that_are_published(store: Store, table: schema.Table) -> None:
    """Columns, order, types and nullability are those of the table's declaration."""
    columns = store.frame(
        "SELECT column_name, data_type, is_nullable FROM duckdb_columns() WHERE table_name = ? ORDER BY column_index",
        [table.name],
    )
    sql = {
        "string": "VARCHAR", "json": "VARCHAR", "int64": "BIGINT", "uint64": "UBIGINT", "uint32": "UINTEGER",
        "uint16": "USMALLINT", "float64": "DOUBLE", "float32": "FLOAT", "bool": "BOOLEAN",
    }  # fmt: skip
    assert columns.rows() == [(c.name, sql[c.type], c.nullable) for c in table.columns]


def test_every_table_view_and_column_says_what_it_is(store: Store) -> None:
    """Someone with a SQL prompt alone can learn what a column means and in which unit."""
    silent = store.frame(
        "SELECT table_name, column_name FROM duckdb_columns() c WHERE NOT internal AND comment IS NULL "
        "AND table_name NOT IN ('schema_version', 'log', 'places', 'hours_to_roll', 'tiers', 'node_levels') "
        "UNION ALL SELECT table_name, '' FROM duckdb_tables() WHERE NOT internal AND comment IS NULL "
        "UNION ALL SELECT view_name, '' FROM duckdb_views() WHERE NOT internal AND comment IS NULL"
    )
    assert silent.rows() == []
    power = "SELECT comment FROM duckdb_columns() WHERE table_name = 'windows' AND column_name = 'power_w'"
    assert "Unit: W." in store.frame(power).item()


def test_every_table_comes_back_as_it_went_in(store: Store) -> None:
    """Rows of each published table survive the store with their types, nulls and JSON."""
    rows = {
        "windows": windows([{"gpu_uuid": "GPU-1", "memory_clock_mhz": None, "row_remap_failed": True}]),
        "scores": scores([{"gpu_uuid": "GPU-1", "speeds": '{"compute":{"speed":1.0}}', "cause": None}]),
        "transitions": transitions([{"transition_id": "t1"}]),
        "events": events([{"gpu_uuid": ""}]),
        "measurements": measurements([{"evidence": '{"freq": 1410}'}]),
        "gpus": gpus([{"gpu_uuid": "GPU-1", "memory_total_bytes": 2**63 + 1}]),
        "nodes": nodes([{"node": "n1", "place": '[["rack","r1"]]'}]),
        "topology": topology({"n1": [("rack", "r1"), ("site", "north")]}),
    }
    store.write(rows)
    for name, frame in rows.items():
        assert store.table(name).equals(frame, null_equal=True), name
        assert store.table(name).schema == types_of(TABLES[name]), name


def test_writing_the_same_batch_again_changes_nothing(store: Store) -> None:
    """At least once on the wire is exactly once in the store, for every table."""
    rows = {
        "windows": windows([{"gpu_uuid": f"GPU-{i}"} for i in range(3)]),
        "scores": scores([{"gpu_uuid": f"GPU-{i}"} for i in range(3)]),
        "transitions": transitions([{"transition_id": "t1"}, {"transition_id": "t2"}]),
        "events": events([{}, {"kind": "gpu_lost"}]),
        "measurements": measurements([{}, {"value": 2.0}]),
        "topology": topology({"n1": [("rack", "r1")]}),
    }
    store.write(rows, log_id="a", offsets={("isotach.windows", 0): 7})
    before = {name: store.table(name) for name in rows}
    store.write(rows, log_id="a", offsets={("isotach.windows", 0): 7})
    assert {name: store.table(name).equals(before[name]) for name in rows} == dict.fromkeys(rows, True)
    assert store.places() == ("a", {("isotach.windows", 0): 7})


def test_the_newest_score_wins_in_whatever_order_it_comes(store: Store) -> None:
    """An old score that is read again never covers a newer one, inside a batch or across batches."""
    old, new = {"gpu_uuid": "GPU-1", "speed": 0.9, "as_of_ns": START}, {"gpu_uuid": "GPU-1", "as_of_ns": START + 1}
    store.write({"scores": scores([new, old])})
    assert store.table("scores")["as_of_ns"].to_list() == [START + 1]
    store.write({"scores": scores([old])})
    assert store.table("scores")["as_of_ns"].to_list() == [START + 1]
    store.write({"scores": scores([new | {"tier": "degraded"}])})
    assert store.table("scores")["tier"].to_list() == ["degraded"], "among equals the later one stays"


def test_the_first_window_stays(store: Store) -> None:
    """A window that was published is not changed by a later copy of it."""
    store.write({"windows": windows([{"gpu_uuid": "GPU-1", "samples": 60}])})
    store.write({"windows": windows([{"gpu_uuid": "GPU-1", "samples": 1}, {"gpu_uuid": "GPU-2"}])})
    assert store.table("windows").select("gpu_uuid", "samples").rows() == [("GPU-1", 60), ("GPU-2", 60)]


@settings(max_examples=8, deadline=None)
@given(
    batches=st.lists(
        st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9), st.floats(0.5, 1.5)), max_size=8), max_size=6
    )
)
def test_scores_are_a_map_from_gpu_to_its_newest_row(batches: list[list[tuple[int, int, float]]]) -> None:
    """However rows are cut into batches and repeated in them, the store holds what a dictionary would."""
    expected: dict[str, tuple[int, float]] = {}
    with Store(None) as store:
        for batch in batches:
            rows = [{"gpu_uuid": f"GPU-{g}", "as_of_ns": START + t, "speed": s} for g, t, s in batch]
            store.write({"scores": scores(rows)})
            for row in rows:
                if row["gpu_uuid"] not in expected or row["as_of_ns"] >= expected[row["gpu_uuid"]][0]:
                    expected[row["gpu_uuid"]] = (row["as_of_ns"], row["speed"])
        stored = store.table("scores").select("gpu_uuid", "as_of_ns", "speed").rows()
    assert stored == [(uuid, *expected[uuid]) for uuid in sorted(expected)]


def test_rows_and_places_are_one_transaction(store: Store) -> None:
    """When one table of a batch is refused, nothing of it is stored, and its offsets are not either."""
    store.write({}, log_id="a", offsets={("t", 0): 1})
    bad = scores([{"gpu_uuid": "GPU-1"}]).with_columns(tier=pl.lit(None, pl.String))
    with pytest.raises(StoreError, match="tier"):
        store.write({"windows": windows([{"gpu_uuid": "GPU-1"}]), "scores": bad}, log_id="b", offsets={("t", 0): 9})
    assert store.table("windows").is_empty()
    assert store.places() == ("a", {("t", 0): 1})
    store.write({"windows": windows([{"gpu_uuid": "GPU-1"}])})
    assert store.table("windows").height == 1, "the store is usable after a refusal"


def test_another_log_begins_at_its_own_offsets(store: Store) -> None:
    """Offsets of an old log mean nothing in a new one."""
    store.write({}, log_id="a", offsets={("t", 0): 5, ("t", 1): 6})
    store.write({}, log_id="a", offsets={("t", 1): 7})
    assert store.places() == ("a", {("t", 0): 5, ("t", 1): 7})
    store.write({}, log_id="b", offsets={("t", 0): 1})
    assert store.places() == ("b", {("t", 0): 1})


def test_a_tombstone_deletes_its_key(store: Store) -> None:
    """A deleted GPU is gone, a row of the same call stays, and a deletion of nothing is fine."""
    store.write({"scores": scores([{"gpu_uuid": "GPU-1"}, {"gpu_uuid": "GPU-2"}])})
    store.write({"scores": scores([{"gpu_uuid": "GPU-3"}])}, deletes={"scores": ["GPU-1", "GPU-3", "absent"]})
    assert store.table("scores")["gpu_uuid"].to_list() == ["GPU-2", "GPU-3"]


@pytest.mark.parametrize(
    ("name", "frame", "says"),
    [
        ("planets", pl.DataFrame({"a": [1]}), "no table 'planets'"),
        ("scores", pl.DataFrame({"gpu_uuid": ["GPU-1"]}), "missing"),
        ("topology", topology({"n1": [("rack", "r1")]}).with_columns(planet=1), "planet"),
        ("topology", topology({"n1": [("rack", "r1")]}).with_columns(position=pl.lit("first")), "topology"),
    ],
)
def test_a_wrong_frame_is_named(store: Store, name: str, frame: pl.DataFrame, says: str) -> None:
    """A frame that does not fit says which table and column are wrong, and stores nothing."""
    with pytest.raises(StoreError, match=says):
        store.write({name: frame})


def test_odd_numbers_become_null(store: Store) -> None:
    """NaN and infinity do not reach anyone who reads the store."""
    store.write({"scores": scores([{"gpu_uuid": "GPU-1", "speed": float("nan"), "speed_high": float("inf")}])})
    assert store.table("scores").select("speed", "speed_high").rows() == [(None, None)]


def test_the_version_grows_with_every_write_and_subscribers_hear_of_it(store: Store) -> None:
    """Caches can trust the version, for each table too, and a subscriber that left hears nothing."""
    heard: list[int] = []
    leave = store.subscribe(heard.append)
    store.write({"scores": scores([{"gpu_uuid": "GPU-1"}])})
    after_scores = store.version
    store.write({"events": events([{}])})
    leave()
    store.write({"events": events([{"code": 13}])})
    assert heard == [after_scores, after_scores + 1]
    assert store.version_of("scores") == after_scores
    assert store.version_of("scores", "events") == store.version == after_scores + 2


def test_reading_and_writing_go_on_at_once(store: Store) -> None:
    """Threads read whole batches while another one writes."""
    seen: set[int] = set()
    stop = threading.Event()
    failed: list[StoreError] = []

    def read() -> None:
        while not stop.is_set():
            try:
                seen.add(store.frame("SELECT count(*) FROM windows").item() % 50)
            except StoreError as error:
                failed.append(error)
                return

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for minute in range(20):
        store.write(
            {
                "windows": windows(
                    [{"gpu_uuid": f"GPU-{i}", "window_start_ns": START + minute * MINUTE} for i in range(50)]
                )
            }
        )
    stop.set()
    for reader in readers:
        reader.join()
    assert not failed
    assert seen == {0}, "a reader saw part of a batch"


def test_a_second_process_is_told_what_to_do(tmp_path: Path) -> None:
    """The file of a running service cannot be opened: the word says why and what instead; the service goes on."""
    path = tmp_path / "isotach.duckdb"
    opening = (
        "import sys; from pathlib import Path; from analytics.store import Store\n"
        "from telemetry.errors import StoreError\n"
        "try: Store(Path(sys.argv[1]))\nexcept StoreError as error: print(error); sys.exit(7)"
    )
    with Store(path) as first:
        first.write({"scores": scores([{"gpu_uuid": "GPU-1"}])})
        second = subprocess.run(
            [sys.executable, "-c", opening, str(path)], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert second.returncode == 7, second.stderr
        assert "open in another process" in second.stdout
        assert "HTTP API" in second.stdout
        assert str(os.getpid()) in second.stdout
        first.write({"scores": scores([{"gpu_uuid": "GPU-2"}])})
        assert first.table("scores").height == 2
    with Store(path) as again:
        assert again.table("scores").height == 2


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    """A wrong file, a missing folder and a store of a newer version are each refused with their own word."""
    (tmp_path / "notes.txt").write_text("this is no database, " * 300)
    with pytest.raises(StoreError, match=r"notes\.txt"):
        Store(tmp_path / "notes.txt")
    with pytest.raises(StoreError, match="cannot open"):
        Store(tmp_path / "absent" / "isotach.duckdb")
    with Store(tmp_path / "newer.duckdb") as store, store.transaction() as cursor:
        cursor.execute("INSERT INTO schema_version VALUES (9999, 'from_the_future')")
    with pytest.raises(StoreError, match="schema 9999"):
        Store(tmp_path / "newer.duckdb")


def test_a_closed_store_says_so() -> None:
    """Reading after the end is an error with a name, not a crash."""
    store = Store(None)
    store.close()
    with pytest.raises(StoreError):
        store.frame("SELECT 1")


def test_a_snapshot_is_a_store_of_one_moment(tmp_path: Path) -> None:
    """A copy made while a writer writes holds whole batches, opens like the original, and replaces an older copy."""
    copy = tmp_path / "copy.duckdb"
    copy.write_text("an older copy")
    with Store(tmp_path / "live.duckdb") as store:
        stop = threading.Event()

        def write() -> None:
            minute = 0
            while not stop.is_set():
                start = START + minute * MINUTE
                store.write(
                    {"windows": windows([{"gpu_uuid": f"GPU-{i}", "window_start_ns": start} for i in range(20)])}
                )
                minute += 1

        writer = threading.Thread(target=write)
        writer.start()
        try:
            store.snapshot(copy)
        finally:
            stop.set()
            writer.join()
        with Store(copy) as opened:
            assert opened.table("windows").height % 20 == 0
            assert opened.frame("SELECT count(*) FROM schema_version").item() == len(schema.migrations())
            opened.write({"windows": windows([{"gpu_uuid": "GPU-new"}])})


def test_days_and_hours_are_utc_whatever_the_machine_says(tmp_path: Path) -> None:
    """00:30 in Amsterdam in July belongs to the day before: for every way to cut time, and for the roll-ups."""
    moment = int(datetime(2026, 7, 14, 22, 30, tzinfo=UTC).timestamp()) * 10**9
    script = (
        "import sys; from analytics.store import Store\n"
        "with Store(None) as store:\n"
        "    print(store.frame('SELECT day_of(?::BIGINT)::VARCHAR, hour_of(?::BIGINT), '\n"
        "        'time_bucket(INTERVAL 1 DAY, make_timestamptz(? // 1000))::DATE::VARCHAR, '\n"
        "        \"date_trunc('day', make_timestamptz(? // 1000))::DATE::VARCHAR\", [int(sys.argv[1])] * 4).row(0))"
    )
    environment = os.environ | {"TZ": "Europe/Amsterdam"}
    said = subprocess.run(
        [sys.executable, "-c", script, str(moment)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    hour = moment - moment % HOUR
    assert said.stdout.strip() == f"('2026-07-14', {hour}, '2026-07-14', '2026-07-14')", said.stderr


def test_roll_ups_hold_what_the_windows_say(store: Store) -> None:
    """An hour weighs means by samples, adds sums, and exists for GPU, node, block and fleet."""
    one = {"gpu_uuid": "GPU-1", "energy_j": 2.0}
    two = {"gpu_uuid": "GPU-2", "node": "n2"}
    store.write({"topology": topology({"n1": [("rack", "r1")], "n2": [("rack", "r1")]})})
    store.write(
        {
            "windows": windows(
                [
                    one | {"effective_clock_mhz": 1800.0, "busy_samples": 60, "energy_j": 10.0},
                    one | {"window_start_ns": START + MINUTE, "effective_clock_mhz": 1200.0, "busy_samples": 20},
                    one | {"window_start_ns": START + 2 * MINUTE, "effective_clock_mhz": None, "busy_samples": 0},
                    two | {"temperature_max_c": 90.0, "energy_j": 7.0},
                    two | {"window_start_ns": START + HOUR},
                ]
            )
        }
    )
    assert store.roll_up() == 2
    assert store.roll_up() == 0, "nothing is computed twice"
    hour = store.frame("FROM windows_hourly WHERE gpu_uuid = 'GPU-1'").row(0, named=True)
    assert (hour["windows"], hour["samples"], hour["energy_j"]) == (3, 180, 14.0)
    assert hour["effective_clock_mhz"] == pytest.approx((1800 * 60 + 1200 * 20) / 80)
    blocks = store.frame("FROM blocks_hourly WHERE hour_start_ns = ? ORDER BY level, value", [START])
    assert blocks.select("level", "value", "gpus", "windows", "energy_j", "temperature_max_c").rows() == [
        ("fleet", "fleet", 2, 4, 21.0, 90.0),
        ("node", "n1", 1, 3, 14.0, 65.0),
        ("node", "n2", 1, 1, 7.0, 90.0),
        ("rack", "r1", 2, 4, 21.0, 90.0),
    ]


def test_a_late_window_recomputes_its_hour(store: Store) -> None:
    """Roll-ups end up the same, whatever order windows come in and however often they are rolled up between."""
    rows = windows(
        [
            {"gpu_uuid": f"GPU-{i % 2}", "window_start_ns": START + i * 7 * MINUTE, "energy_j": float(i)}
            for i in range(20)
        ]
    )
    store.write({"windows": rows})
    store.roll_up()
    expected = [store.frame(f"FROM {table.name} ORDER BY ALL") for table in schema.ROLLUPS]
    with Store(None) as other:
        for i in (3, 0, 19, 5, *range(20)):
            other.write({"windows": rows[i]})
            other.roll_up()
        assert [
            other.frame(f"FROM {table.name} ORDER BY ALL").equals(one)
            for table, one in zip(schema.ROLLUPS, expected, strict=True)
        ] == [True, True]


def test_retention_keeps_roll_ups_and_what_is_young(store: Store) -> None:
    """Old windows leave after their hour is rolled up; one that comes back later cannot shrink it."""
    store.write(
        {"windows": windows([{"gpu_uuid": "GPU-1", "window_start_ns": START + i * 6 * HOUR} for i in range(8)])}
    )
    store.write({"events": events([{"time_ns": START}]), "transitions": transitions([{"transition_id": "t1"}])})
    assert store.retain(before_ns=START + DAY) == {"windows": 4}
    assert store.table("windows")["window_start_ns"].min() == START + DAY
    assert store.frame("SELECT count(*) FROM windows_hourly").item() == 8
    store.write({"windows": windows([{"gpu_uuid": "GPU-1", "window_start_ns": START + i * MINUTE} for i in range(2)])})
    store.retain(before_ns={"windows": START + DAY, "events": START + 1})
    assert store.table("events").is_empty()
    assert store.table("transitions").height == 1
    store.write({"windows": windows([{"gpu_uuid": "GPU-1"}])})
    store.roll_up()
    assert store.frame("SELECT max(windows) FROM windows_hourly WHERE hour_start_ns = ?", [START]).item() == 2
    with pytest.raises(StoreError, match="no retention for scores"):
        store.retain(before_ns={"scores": START})


@pytest.mark.parametrize("on_disk", [True, False], ids=["file", "memory"])
def test_memory_stays_flat_over_rounds_of_replacing_and_deleting(tmp_path: Path, on_disk: bool) -> None:
    """Retention and upserts go on for days: neither memory nor file grows with the rounds, under a small limit."""
    count = 8_000  # a small part of the reported case, under a small part of its limit, so that it is quick
    path = tmp_path / "isotach.duckdb" if on_disk else None
    names = pl.Series([f"GPU-{i:08d}" for i in range(count)])
    score = scores([{"gpu_uuid": "x", "state": '{"n": 1}'}]).select(pl.all().repeat_by(count).explode())
    window = windows([{"gpu_uuid": "x"}]).select(pl.all().repeat_by(count).explode())
    used = []
    with Store(path, memory_limit="40MB") as store:
        for round_ in range(10):
            now = START + round_ * MINUTE
            speed = 1.0 + pl.int_range(count) / count
            store.write(
                {
                    "scores": score.with_columns(gpu_uuid=names, as_of_ns=pl.lit(now), speed=speed),
                    "windows": window.with_columns(gpu_uuid=names, window_start_ns=pl.lit(now)),
                }
            )
            store.retain(before_ns=now)
            used.append(store.frame("SELECT sum(memory_usage_bytes)::BIGINT FROM duckdb_memory()").item())
        assert store.table("scores").height == store.table("windows").height == count
    assert max(used[5:]) <= 1.5 * max(used[1:4]), used
    if path is not None:
        assert path.stat().st_size < 60 << 20


def test_a_new_topology_replaces_the_old_one() -> None:
    """A node that moved keeps no old level, and one that left keeps no place."""
    with Store(None) as store:
        store.replace_topology(topology({"n1": [("rack", "r1"), ("spine", "s1")], "n2": [("rack", "r1")]}))
        store.replace_topology(topology({"n1": [("rack", "r2")]}))
        found = store.table("topology").select("node", "level", "value").rows()
    assert found == [("n1", "rack", "r2")]
