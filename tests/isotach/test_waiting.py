"""Kafka that is away when a process starts: it waits, says so, and ends when it is told to."""

import json
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from support.kafka import Broker
from support.processes import Server, free_port, processes

from streams import Outgoing
from streams.late import LateProducer
from streams.topics import EVENTS
from telemetry.errors import TransportError

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("site")]


@pytest.mark.parametrize("role", ["window", "score", "serve"])
def test_a_job_waits_for_kafka_and_ends_when_told(role: str, tmp_path: Path) -> None:
    """One line says that it waits and why; SIGTERM ends it with status 0."""
    with processes(tmp_path) as site:
        more = ("--store", tmp_path / "s.duckdb", "--port", free_port()) if role == "serve" else ()
        one = site.start(role, role, "--bootstrap", f"127.0.0.1:{free_port()}", *more)
        site.until(lambda: "waiting for Kafka" in one.output, "it says that it waits")
        assert "Connection refused" in one.output
        assert one.alive
        assert one.stop() == 0
        assert one.output.count("waiting for Kafka") == 1


@pytest.mark.kafka
def test_a_replica_serves_what_it_has_while_kafka_is_away(tmp_path: Path, breakable_broker: Broker) -> None:
    """Alive and not ready, its store served, posts refused with a time to try again; then it catches up by itself."""
    prefix = f"late-{time.time_ns()}-"
    words = ("--bootstrap", breakable_broker.bootstrap, "--topic-prefix", prefix)
    breakable_broker.stop()
    with processes(tmp_path) as site:
        server = Server(port := free_port())
        one = site.start("serve", "serve", *words, "--store", tmp_path / "s.duckdb", "--port", port)
        site.until(lambda: server.answers("/healthz"), "it is alive")
        assert server.total() == 0
        assert not server.ready()
        event = {"time_ns": time.time_ns(), "node": "n1", "gpu_uuid": "", "kind": "missing_gpu"}
        with pytest.raises(urllib.error.HTTPError) as refused:
            post(server.url, event)
        with refused.value:
            assert (refused.value.code, refused.value.headers["Retry-After"]) == (503, "5")
        breakable_broker.start()
        site.until(server.ready, "it has caught up")
        assert post(server.url, event) == 202
        assert one.stop() == 0


def post(url: str, event: dict[str, object]) -> int:
    """The status that an event is answered with; raises HTTPError if it is refused."""
    headers = {"Content-Type": "application/json", "Isotach-Topic": EVENTS}
    request = urllib.request.Request(f"{url}/v1/telemetry", json.dumps(event).encode(), headers)
    with urllib.request.urlopen(request, timeout=20) as response:
        return int(response.status)


def test_an_agent_collects_while_kafka_is_away(tmp_path: Path) -> None:
    """It starts, says that messages wait, and ends when told."""
    with processes(tmp_path) as site:
        port = free_port()
        words = ("--collector", "simulated", "--batch-s", 1, "--metrics-port", port)
        one = site.start("agent", "agent", "--bootstrap", f"127.0.0.1:{free_port()}", *words)
        site.until(lambda: "messages wait in memory" in one.output, "it says that messages wait")
        assert one.alive
        assert one.stop() == 0


class _Kept:
    def __init__(self) -> None:
        self.sent: list[Outgoing] = []

    def send(self, message: Outgoing) -> None:
        self.sent.append(message)

    def flush(self, *, timeout_s: float = 60.0) -> None:
        """Nothing waits."""

    def close(self, *, timeout_s: float = 60.0) -> None:
        """Nothing is open."""


def test_a_late_producer_connects_once_the_log_is_there() -> None:
    """It raises while the log is away, then sends through one connection."""
    kept, tries = _Kept(), 0

    def connect() -> _Kept:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise TransportError("away")
        return kept

    late = LateProducer(connect)
    message = Outgoing(topic="t", key=None, value=b"v")
    for _ in range(2):
        with pytest.raises(TransportError, match="away"):
            late.send(message)
    late.send(message)
    late.send(message)
    assert (tries, len(kept.sent)) == (3, 2)
