"""`isotach import` and `isotach rank --store`: from a file of anyone's results to a ranking, without any server.

To add a file that must be refused: one line in `REFUSED`.
"""

import csv
import json
import signal
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner
from scipy.stats import spearmanr
from support.processes import free_port, processes, run
from support.simulated_run import START_NS, Run, fleet
from support.undisturbed import last_window_ns, outcome_of, same_windows, undisturbed

from analytics.store import Store
from isotach.cli import cli
from streams import window

pytestmark = pytest.mark.processes

LONGHORN = ("--columns", "gpu=uuid,node=node,value=perf,time=ts", "--unit", "ms", "--lower-is-better")
SIMULATED = fleet({"kind": "power_cap", "start_s": 90, "select": {"gpu": "n2/1"}})
SECONDS = 400


def ranked(store: Path, *options: object) -> list[dict[str, Any]]:
    """What `rank --format json` prints of a store."""
    done = run("rank", "--store", store, "--format", "json", *options)
    assert done.returncode == 0, done.stderr
    items: list[dict[str, Any]] = json.loads(done.stdout)
    return items


def write(path: Path, rows: Sequence[Sequence[object]]) -> Path:
    """A CSV file of these lines."""
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def measurements_in(store: Path) -> int:
    """How many measurements a store holds."""
    opened = Store(store)
    try:
        return len(opened.table("measurements"))
    finally:
        opened.close()


@pytest.fixture(scope="module")
def longhorn(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store made from the SGEMM runs of a real cluster."""
    store = tmp_path_factory.mktemp("longhorn") / "fleet.duckdb"
    done = run("import", shared_data / "longhorn" / "sgemm.csv", "--store", store, *LONGHORN)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "5,518 measurements read" in done.stderr
    assert "194 GPUs" in done.stderr
    return store


def test_one_command_ranks_a_real_cluster_as_its_times_do(longhorn: Path, shared_data: Path) -> None:
    """The order is that of each GPU's median time: Spearman above 0.99."""
    times: dict[str, list[float]] = {}
    for row in csv.DictReader((shared_data / "longhorn" / "sgemm.csv").read_text().splitlines()):
        times.setdefault(row["uuid"], []).append(float(row["perf"]))
    items = ranked(longhorn, "--class", "compute")
    assert len(items) == len(times) == 194
    medians = [statistics.median(times[item["gpu_uuid"]]) for item in items]
    assert spearmanr([-item["speed"] for item in items], medians).statistic > 0.99
    assert all(item["workload_class"] == "compute" and not item["stale"] for item in items)


def test_the_same_file_twice_is_the_same_store(longhorn: Path, shared_data: Path, tmp_path: Path) -> None:
    """No measurement counts twice, in the table or in a score."""
    store = tmp_path / "again.duckdb"
    for suffix in ("", ".journal"):
        store.with_name(store.name + suffix).write_bytes(longhorn.with_name(longhorn.name + suffix).read_bytes())
    done = run("import", shared_data / "longhorn" / "sgemm.csv", "--store", store, *LONGHORN)
    assert done.returncode == 0, done.stderr
    assert measurements_in(store) == measurements_in(longhorn)
    assert ranked(store) == ranked(longhorn)


def test_a_second_file_adds_to_the_first(tmp_path: Path) -> None:
    """GPUs and results of both files are there, each once."""
    store = tmp_path / "fleet.duckdb"
    for name, gpus in (("one", range(6)), ("two", range(4, 9))):
        rows = [(f"GPU-{gpu}", "n1", 100 + gpu, 1_790_000_000 + gpu) for gpu in gpus]
        file = write(tmp_path / f"{name}.csv", [("gpu", "node", "value", "timestamp"), *rows])
        done = run("import", file, "--store", store, "--name", "gemm", "--higher-is-better")
        assert done.returncode == 0, done.stderr
    assert sorted(item["gpu_uuid"] for item in ranked(store)) == [f"GPU-{gpu}" for gpu in range(9)]
    assert measurements_in(store) == 9


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_a_recording_gives_the_windows_of_the_live_road(form: str, tmp_path: Path) -> None:
    """Telemetry that was recorded and imported is windowed as it would have been when it was taken."""
    told = Run(SIMULATED, seconds=SECONDS, seed=3)
    frames = []
    for batch in told.batches:
        identity = {"time_ns": list(batch.time_ns), "node": [batch.node] * len(batch)}
        gpus = {"gpu_uuid": [batch.gpus[index] for index in batch.gpu]}
        frames.append(pl.DataFrame(identity | gpus | {name: list(v) for name, v in batch.columns.items()}))
    recording, file = pl.concat(frames, how="vertical_relaxed"), tmp_path / f"telemetry.{form}"
    recording.write_parquet(file) if form == "parquet" else recording.write_csv(file)
    store = tmp_path / "fleet.duckdb"
    done = run("import", file, "--store", store)
    assert done.returncode == 0, done.stderr
    assert f"{len(recording):,} samples read" in done.stderr

    live = undisturbed(SIMULATED, start_ns=START_NS, seconds=SECONDS, seed=3, window_s=60.0, lateness_s=30.0)
    last_ns = last_window_ns(start_ns=START_NS, seconds=SECONDS, lateness_s=30.0, window_s=60.0)
    found = outcome_of(store).windows
    assert found["window_start_ns"].max() > last_ns  # the end of a recording closes its last windows, too
    same_windows(found.filter(pl.col("window_start_ns") <= last_ns), live.windows)


def test_the_last_windows_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window job that is slow to see that the recording has ended loses nothing of it."""
    rows = [(f"GPU-{gpu}", "n1", START_NS // 10**9 + at, 1_500 + gpu) for at in range(0, 600, 15) for gpu in range(4)]
    file, store = (
        write(tmp_path / "t.csv", [("gpu_uuid", "node", "time", "sm_clock_mhz"), *rows]),
        tmp_path / "s.duckdb",
    )
    at_once = window._Job._idle

    def late(job: window._Job, now: int) -> None:
        time.sleep(0.5)  # all else is done and quiet by then
        at_once(job, now)

    monkeypatch.setattr(window._Job, "_idle", late)
    done = CliRunner().invoke(cli, ["import", str(file), "--store", str(store)])
    assert done.exit_code == 0, done.output
    opened = Store(store)
    try:
        assert opened.table("windows")["samples"].sum() == len(rows)
    finally:
        opened.close()


HEADER = ("gpu", "node", "value", "timestamp")
REFUSED: Mapping[str, tuple[Sequence[Sequence[object]], Sequence[object], str]] = {
    "empty": ([], ["--unit", "ms"], "is empty"),
    "only a header": ([HEADER], ["--unit", "ms"], "none of its rows could be used"),
    "blank lines": ([HEADER, (), ()], ["--unit", "ms"], "none of its rows could be used"),
    "wrong column": ([HEADER, ("GPU-1", "n", 1, 1)], ["--unit", "ms", "--columns", "value=valeu"], "mean 'value'"),
    "wrong role": ([HEADER, ("GPU-1", "n", 1, 1)], ["--unit", "ms", "--columns", "speed=value"], "speed"),
    "no pair": ([HEADER, ("GPU-1", "n", 1, 1)], ["--unit", "ms", "--columns", "value"], "expected role=COLUMN"),
    "no value": ([("gpu", "a", "b"), ("GPU-1", 1, 2)], ["--unit", "ms"], "value"),
    "no direction": ([HEADER, ("GPU-1", "n", 1, 1_790_000_000)], ["--unit", "GB/s"], "--higher-is-better"),
    "nothing usable": ([HEADER, ("GPU-1", "n", "x", 1)], ["--unit", "ms"], "none of its rows could be used"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_cannot_be_used_is_refused_in_words(case: str, tmp_path: Path) -> None:
    """One clear line, status 1, no traceback, and no store that looks like a result."""
    rows, options, words = REFUSED[case]
    done = run("import", write(tmp_path / "file.csv", rows), "--store", tmp_path / "s.duckdb", *options)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("isotach: ")] == [done.stderr.splitlines()[-1]]
    assert not list(tmp_path.glob("*.duckdb*"))


def test_rows_that_cannot_be_used_are_told_by_number(tmp_path: Path) -> None:
    """The good rows count; each bad one is named with its row and rule."""
    rows = [HEADER, ("GPU-1", "n1", 5, 1_790_000_000), ("GPU-2", "n1", "five", 1_790_000_000), ("", "n1", 5, ""),
            ("GPU-3", "n1", -1, 1_790_000_000), ("GPU-4", "n1", 6, 1_790_000_000)]  # fmt: skip
    store = tmp_path / "s.duckdb"
    done = run("import", write(tmp_path / "f.csv", rows), "--store", store, "--unit", "ms")
    assert done.returncode == 0, done.stderr
    for words in ("2 measurements read", "row 2: not_a_number", "row 3: no_gpu", "row 4: not_above_zero"):
        assert words in done.stderr
    assert {item["gpu_uuid"] for item in ranked(store)} == {"GPU-1", "GPU-4"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_import_cut_short_is_completed_by_the_next(number: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C or kill -9 in the middle leaves a store that opens, and the same import again makes it whole."""
    rows = [(f"GPU-{i % 200}", f"n{i % 25}", 100 + i % 200 + (i % 7) / 10, 1_790_000_000 + i) for i in range(8_000)]
    file, store = write(tmp_path / "f.csv", [HEADER, *rows]), tmp_path / "cut.duckdb"
    words = ("import", file, "--unit", "ms", "--store")
    with processes(tmp_path) as site:
        cut = site.start("cut", *words, store)
        journal = Path(f"{store}.journal-wal")
        site.until(lambda: journal.exists() and journal.stat().st_size > 100_000, "it reads")
        cut.send(number)
        assert cut.wait() == (1 if number == signal.SIGINT else -signal.SIGKILL)
        assert "Traceback" not in cut.output
        assert ("isotach: stopped" in cut.output) == (number == signal.SIGINT)
    assert measurements_in(store) < len(rows)
    for target in (store, tmp_path / "whole.duckdb"):
        done = run(*words, target)
        assert done.returncode == 0, done.stderr
    assert measurements_in(store) == len(rows)
    assert speeds(store) == speeds(tmp_path / "whole.duckdb")


def speeds(store: Path) -> dict[str, tuple[float, str]]:
    """Speed and tier of each GPU."""
    return {item["gpu_uuid"]: (item["speed"], item["tier"]) for item in ranked(store)}


def test_nodes_and_levels_are_ranked_from_a_store(tmp_path: Path) -> None:
    """--by node, --by a level of the topology, CSV and --limit print what the API would."""
    rows = [(f"GPU-{i}", f"n{i // 4}", 100 + i, 1_790_000_000 + i) for i in range(16)]
    topology = tmp_path / "topology.conf"
    topology.write_text(
        "SwitchName=leaf1 Nodes=n[0-1]\nSwitchName=leaf2 Nodes=n[2-3]\nSwitchName=top Switches=leaf[1-2]\n"
    )
    store = tmp_path / "s.duckdb"
    file = write(tmp_path / "f.csv", [HEADER, *rows])
    done = run("import", file, "--store", store, "--unit", "ms", "--topology", topology)
    assert done.returncode == 0, done.stderr
    nodes = ranked(store, "--by", "node")
    assert [node["node"] for node in nodes] == ["n0", "n1", "n2", "n3"]
    levels = run("rank", "--store", store, "--by", "leaf", "--format", "csv")
    assert levels.returncode == 0, levels.stderr
    blocks = list(csv.DictReader(levels.stdout.splitlines()))
    assert [(block["value"], block["gpus"]) for block in blocks] == [("leaf1", "8"), ("leaf2", "8")]
    few = list(csv.DictReader(run("rank", "--store", store, "--format", "csv", "--limit", 3).stdout.splitlines()))
    assert [row["gpu_uuid"] for row in few] == ["GPU-0", "GPU-1", "GPU-2"]
    fit = ranked(store, "--by", "node", "--gpus", 4)
    assert [node["value"] for node in fit] == ["n0", "n1", "n2", "n3"]
    assert ranked(store, "--by", "node", "--gpus", 5) == []
    assert "n0" in run("rank", "--store", store, "--by", "node", "--gpus", 4).stdout
    table = run("rank", "--store", store).stdout
    assert "16 of 16" in table
    wrong = run("rank", "--store", store, "--by", "rack")
    assert wrong.returncode == 1
    assert "leaf" in wrong.stderr


def test_a_store_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    """A missing file is named and not made."""
    done = run("rank", "--store", tmp_path / "none.duckdb")
    assert done.returncode == 1
    assert "there is no such file" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_store_in_use_is_said_so_and_its_owner_goes_on(tmp_path: Path) -> None:
    """Reading the file of a running server says whom to ask instead, and disturbs nobody."""
    store, port = tmp_path / "s.duckdb", free_port()
    with processes(tmp_path) as site:
        owner = site.start("up", "up", "--store", store, "--port", port, "--collector", "none")
        site.until(lambda: "API on" in owner.output, "it listens")
        for command in (("rank", "--store", store), ("explain", "GPU-1", "--store", store)):
            done = run(*command)
            assert done.returncode == 1
            assert "HTTP API" in done.stderr
            assert "Traceback" not in done.stderr
        assert owner.alive
        assert owner.stop() == 0


def test_results_with_clocks_beside_them_are_no_recording(tmp_path: Path) -> None:
    """Who says a unit means results: clocks beside them make no recording, and the result's column is asked for."""
    rows = [["gpu_uuid", "node", "time", "gemm_ms", "sm_clock_mhz", "power_w"]]
    rows += [[f"GPU-{i}", "n1", 1_767_225_600 + i, 100 + i, 1400, 300] for i in range(5)]
    file, store = write(tmp_path / "gemm.csv", rows), tmp_path / "s.duckdb"
    done = run("import", file, "--store", store, "--unit", "ms")
    assert done.returncode == 1
    assert "value=" in done.stderr
    assert not store.exists()
    done = run("import", file, "--store", store, "--unit", "ms", "--columns", "value=gemm_ms,gpu=gpu_uuid,node=node")
    assert done.returncode == 0, done.stderr
    assert measurements_in(store) == 5


def test_lines_that_are_no_rows_are_told(tmp_path: Path) -> None:
    """A line with too many cells is counted and named by its number, and the others are taken."""
    lines = [
        "gpu_uuid,node,perf",
        *(f"GPU-{i},n1,{100 + i}" for i in range(6)),
        "GPU-6,n1,106,oops,more",
        "GPU-7,n1,107",
    ]
    file, store = tmp_path / "broken.csv", tmp_path / "s.duckdb"
    file.write_text("\n".join(lines) + "\n")
    done = run("import", file, "--store", store, "--unit", "ms")
    assert done.returncode == 0, done.stderr
    assert "row 7" in done.stderr
    assert measurements_in(store) == 7
