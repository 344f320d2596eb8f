"""`isotach import URL`: what a Prometheus has kept of dcgm-exporters, into a store."""

import json
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from support.dcgm import Exporters, answer, exporters, field_name, labels, raw
from support.processes import run

from analytics.store import Store
from telemetry.metrics import METRICS

pytestmark = pytest.mark.processes

STEP_S = 15
LENGTH_S = 900
END_S = int(time.time()) // STEP_S * STEP_S - 3600
START_S = END_S - LENGTH_S
NODES = 2
TOKEN = "a-token-of-the-test"


class Kept:
    """A server that answers as Prometheus does, from what it has of some nodes with four GPUs each."""

    def __init__(self, servers: Exporters) -> None:
        self.url = "http://" + servers.add(self.behave)
        self.asked: list[str] = []
        self.most_steps = 11_000
        self.fails_from = 2**60
        self.needs_token = False
        self._servers = servers
        self._names = {field_name(metric): metric for metric in raw() if metric in METRICS}

    def behave(self, connection: socket.socket, path: str) -> None:
        """Answers one question."""
        self.asked.append(path)
        if self.needs_token and f"Authorization: Bearer {TOKEN}" not in self._servers.heads[-1]:
            connection.sendall(answer("{}", status=401, kind="application/json"))
            return
        parts = urlsplit(path)
        asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if parts.path.endswith("/label/__name__/values"):
            data: object = [*self._names, "go_threads", "DCGM_FI_DEV_ENC_UTIL"]
        else:
            begin, end, step = float(asked["start"]), float(asked["end"]), float(asked["step"])
            times = [begin + i * step for i in range(int((end - begin) / step) + 1)]
            if len(times) > self.most_steps or end >= self.fails_from:
                status, words = (422, "query would load too many samples") if end < self.fails_from else (502, "gone")
                body = json.dumps({"status": "error", "errorType": "execution", "error": words})
                connection.sendall(answer(body, status=status, kind="application/json"))
                return
            data = {"resultType": "matrix", "result": list(self.series(asked["query"], times))}
        connection.sendall(answer(json.dumps({"status": "success", "data": data}), kind="application/json"))

    def series(self, name: str, times: list[float]) -> Iterator[object]:
        """The series of one field, as JSON of the API."""
        for node in range(NODES):
            for place in range(4):
                text = labels(place, node=f"n{node}", number=node, more={"hpc_job": "77"})
                pairs = dict(pair.split("=", 1) for pair in text.split(","))
                metric = {"__name__": name, **{key: value.strip('"') for key, value in pairs.items()}}
                values = [
                    [at, str(raw(place, round((at - START_S) / STEP_S))[self._names[name]])]
                    for at in times
                    if START_S <= at <= END_S
                ]
                yield {"metric": metric, "values": values}


@pytest.fixture
def kept() -> Iterator[Kept]:
    """A Prometheus."""
    with exporters() as servers:
        yield Kept(servers)


def take_over(kept: Kept, store: Path, *more: object) -> object:
    """Import all there is."""
    begin, end = (datetime.fromtimestamp(at_s, UTC).isoformat() for at_s in (START_S, END_S))
    span = ("--start", begin, "--end", end, "--step-s", STEP_S)
    return run("import", kept.url, "--store", store, *span, *more)


def contents(store: Path) -> tuple[int, int, int, int]:
    """Windows, their samples, GPUs and jobs of a store."""
    opened = Store(store)
    try:
        windows = opened.table("windows")
        return len(windows), windows["samples"].sum(), len(opened.table("scores")), len(opened.table("jobs"))
    finally:
        opened.close()


def test_history_becomes_windows_scores_and_jobs_and_twice_is_once(kept: Kept, tmp_path: Path) -> None:
    """Every sample is in a window, in pieces that the server can answer; the same again changes nothing."""
    kept.most_steps = 7
    store = tmp_path / "s.duckdb"
    done = take_over(kept, store)
    assert done.returncode == 0, done.stderr
    gpus, steps = NODES * 4, LENGTH_S // STEP_S
    assert "now ranks 8 GPUs" in done.stderr
    assert "100% read" in done.stderr
    first = contents(store)
    assert first[0] >= gpus * LENGTH_S // 60
    assert gpus * (steps - 1) <= first[1] <= gpus * (steps + 1)
    assert first[2:] == (gpus, gpus)
    assert max(len(parse_qs(urlsplit(path).query).get("query", [""])[0]) for path in kept.asked) < 80
    again = take_over(kept, store)
    assert again.returncode == 0, again.stderr
    assert contents(store) == first


def test_what_breaks_in_the_middle_says_where_to_go_on(kept: Kept, tmp_path: Path) -> None:
    """What was read is kept; the message has the time, without a stack trace."""
    kept.fails_from = END_S - 300
    done = take_over(kept, tmp_path / "s.duckdb")
    assert done.returncode == 1
    assert "go on with --start 20" in done.stderr
    assert "status 502 gone" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_token_is_presented_and_never_shown(kept: Kept, tmp_path: Path) -> None:
    """Without one the message says how to give it."""
    kept.needs_token = True
    done = take_over(kept, tmp_path / "s.duckdb")
    assert done.returncode == 1
    assert "--token-file" in done.stderr
    assert not (tmp_path / "s.duckdb").exists()
    file = tmp_path / "token"
    file.write_text(TOKEN)
    done = take_over(kept, tmp_path / "s.duckdb", "--token-file", file)
    assert done.returncode == 0, done.stderr
    assert TOKEN not in done.stderr


@pytest.mark.parametrize(
    ("body", "words"),
    [("<html>", "no Prometheus"), ('{"status":"success","data":["go_threads"]}', "no series of dcgm-exporter")],
)
def test_what_is_no_history_is_refused(body: str, words: str, tmp_path: Path) -> None:
    """One line each, and no store is left behind."""
    with exporters() as servers:
        url = "http://" + servers.add(lambda connection, path: connection.sendall(answer(body)))
        done = run("import", url, "--store", tmp_path / "s.duckdb")
    assert (done.returncode, words in done.stderr, "Traceback" in done.stderr) == (1, True, False), done.stderr
    assert not (tmp_path / "s.duckdb").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("http://127.0.0.1:1",), "cannot be reached"),
        (("http://user:secret@127.0.0.1:1",), "no user in the URL"),
        (("http://127.0.0.1:1", "--start", "now"), "--start has to be before --end"),
        (("http://127.0.0.1:1", "--start", "yesterday"), "expected now, seconds"),
    ],
)
def test_a_wrong_question_is_told_in_one_line(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    """The message names the remedy, and no password."""
    done = run("import", *words, "--store", tmp_path / "s.duckdb")
    assert done.returncode == 1
    assert said in done.stderr
    assert "secret" not in done.stderr
