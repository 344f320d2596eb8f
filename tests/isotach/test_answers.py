"""The command line's two roads to an answer, a server and a store's file, give the same one.

To add a question: one line in `QUESTIONS`.
"""

import http.server
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.processes import free_port
from support.store import gpus, nodes, scores, served, topology, transitions

from analytics.store import Store
from api.app import create_app
from isotach.answers import NEVER_S, ServerAnswers, StoreAnswers, open_answers
from telemetry.errors import IsotachError

QUESTIONS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("/v1/gpus", {"class": None, "limit": 0}),
    ("/v1/gpus", {"class": "memory", "limit": 1}),
    ("/v1/nodes", {"limit": 0}),
    ("/v1/blocks", {"level": "rack"}),
    ("/v1/tiers", {}),
    ("/v1/transitions", {}),
    ("/v1/gpus/GPU%2Fodd%20name", {}),
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A store's file with two synthetic GPUs, one of an odd name, that nobody has open."""
    path = tmp_path / "s.duckdb"
    rows = [{"gpu_uuid": "GPU-a", "node": "n1", "speed": 1.01}, {"gpu_uuid": "GPU/odd name", "node": "n1"}]
    with Store(path) as store:
        store.write(
            {
                "scores": scores(rows),
                "gpus": gpus([{"gpu_uuid": row["gpu_uuid"], "node": "n1"} for row in rows]),
                "nodes": nodes([{"node": "n1"}]),
                "topology": topology({"n1": [("rack", "r1")]}),
                "transitions": transitions([{"transition_id": "t1", "gpu_uuid": "GPU-a", "to_tier": "degraded"}]),
            }
        )
    return path


@contextmanager
def store_answers(file: Path) -> Iterator[StoreAnswers]:
    """Answers from the file, let go at the end."""
    answers = StoreAnswers(file)
    try:
        yield answers
    finally:
        answers.close()


def test_file_and_server_answer_alike(file: Path) -> None:
    """Every question has the same JSON from both; times that only a live answer has are left out."""
    with store_answers(file) as answers:
        from_file = [answers.get(path, parameters) for path, parameters in QUESTIONS]
    with Store(file) as store, served(create_app(store, stale_after_s=NEVER_S)) as client:
        server = ServerAnswers(str(client.base_url), None)
        assert [server.get(path, parameters) for path, parameters in QUESTIONS] == from_file
        server.close()
    assert from_file[0]["total"] == 2
    assert not from_file[0]["stale"]


def test_a_refusal_comes_in_the_servers_own_words(file: Path) -> None:
    """An unknown GPU or level is one sentence, on both roads."""
    with store_answers(file) as answers:
        for path, parameters, words in (
            ("/v1/gpus/GPU-none", {}, "no GPU 'GPU-none' is known here"),
            ("/v1/blocks", {"level": "room"}, "rack"),
        ):
            with pytest.raises(IsotachError, match=words):
                answers.get(path, parameters)


@pytest.mark.parametrize("server", ["localhost:8470", "ftp://x", ""])
def test_an_address_without_a_scheme_is_refused(server: str) -> None:
    """Before anything is asked of it."""
    with pytest.raises(IsotachError, match="must begin with http"):
        open_answers(store=None, server=server, token=None)


def test_nobody_there_is_a_clear_error() -> None:
    """The address, and what to do."""
    answers = ServerAnswers(f"http://127.0.0.1:{free_port()}", None)
    with pytest.raises(IsotachError, match="isotach up"):
        answers.get("/v1/gpus", {})


class Stranger(http.server.BaseHTTPRequestHandler):
    """A server of something else."""

    def do_GET(self) -> None:
        body = b"<html>hello</html>"
        self.send_response(200 if "gpus" in self.path else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Silent."""


def test_a_stranger_is_a_clear_error() -> None:
    """Something else listens there: no traceback, whatever it answers."""
    with http.server.HTTPServer(("127.0.0.1", 0), Stranger) as stranger:
        thread = threading.Thread(target=stranger.serve_forever)
        thread.start()
        try:
            answers = ServerAnswers(f"http://127.0.0.1:{stranger.server_port}", "token")
            with pytest.raises(IsotachError, match="does not answer like"):
                answers.get("/v1/gpus", {})
            with pytest.raises(IsotachError, match="answered 404"):
                answers.get("/v1/nodes", {})
        finally:
            stranger.shutdown()
            thread.join()
