"""Twelve agents while their log is away for ten minutes of the fleet's time: every sample arrives, kills included.

To try another log: a class like `OverKafka`.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

import polars as pl
import pytest
from support.kafka import Broker
from support.processes import Process, Processes, Server, free_port, processes
from support.transports import read_all

from collectors.simulated.collector import Simulated
from streams import TopicPartition
from streams.kafka import KafkaTransport
from streams.topics import TELEMETRY, specs
from telemetry import codec
from telemetry.errors import EndOfInput

pytestmark = [
    pytest.mark.processes,
    pytest.mark.kafka,
    pytest.mark.xdist_group("site"),
    pytest.mark.timeout(600),
]

AGENTS, SECONDS, SPEED, SEED = 12, 1_200, 40, 11
OUTAGE_S = 600 / SPEED
TOKEN = "of-the-agents"
PARTITIONS = 4


class Log(Protocol):
    """Where agents send to, as far as this test goes."""

    settings: tuple[object, ...]

    def away(self) -> None: ...
    def back(self) -> None: ...
    def telemetry(self) -> list[tuple[str, str, bytes]]: ...
    def close(self) -> None: ...


class OverKafka:
    """A real broker, killed as by a power cut."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        prefix = f"outage-{time.time_ns()}-"
        self.settings: tuple[object, ...] = (
            *("--bootstrap", broker.bootstrap),
            *("--topic-prefix", prefix),
            *("--telemetry-partitions", PARTITIONS),
        )
        self._transport = KafkaTransport(bootstrap=broker.bootstrap, prefix=prefix)
        self._transport.ensure_topics(specs(telemetry_partitions=PARTITIONS))

    def away(self) -> None:
        """Kill the broker."""
        self._broker.kill()

    def back(self) -> None:
        """Start it on the same data."""
        self._broker.start()

    def telemetry(self) -> list[tuple[str, str, bytes]]:
        """Schema, GPUs and value of every telemetry message up to now."""
        reader = self._transport.read({TopicPartition(TELEMETRY, p): 0 for p in range(PARTITIONS)})
        try:
            found = [(one.headers["schema"], one.headers["gpus"], one.value or b"") for one in read_all(reader)]
            return [(schema.decode(), gpus.decode(), value) for schema, gpus, value in found]
        finally:
            reader.close()

    def close(self) -> None:
        """Let go."""
        self._transport.close()


class OverHttp:
    """An HTTP server that takes what has the token, and keeps it while it is away."""

    def __init__(self, folder: Path) -> None:
        token = folder / "token"
        token.write_text(TOKEN)
        self._port = free_port()
        self.settings: tuple[object, ...] = ("--server", f"http://127.0.0.1:{self._port}", "--token-file", token)
        self._taken: list[tuple[str, str, bytes]] = []
        self._server: ThreadingHTTPServer | None = None
        self._open: set[socket.socket] = set()
        self.back()

    def away(self) -> None:
        """Stop listening and cut every connection."""
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._open.clear()
        self._server = None

    def back(self) -> None:
        """Listen again on the same port."""
        log = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                log._open.add(self.connection)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                known = self.headers["Authorization"] == f"Bearer {TOKEN}"
                if known and "Isotach-Topic" not in self.headers:
                    names = ("Isotach-schema", "Isotach-gpus")
                    schema, gpus = (unquote(self.headers[name]) for name in names)
                    log._taken.append((schema, gpus, body))
                self.send_response(202 if known else 401)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            def handle_error(self, request: object, client_address: object) -> None:
                pass  # connections that `away` cut

        self._server = Quiet(("127.0.0.1", self._port), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def telemetry(self) -> list[tuple[str, str, bytes]]:
        """Schema, GPUs and value of every telemetry message up to now."""
        return list(self._taken)

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self.away()


@pytest.fixture(params=["kafka", "http"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    made: Log = (
        OverKafka(request.getfixturevalue("breakable_broker")) if request.param == "kafka" else OverHttp(tmp_path)
    )
    yield made
    made.close()


def made_by(shard: int, *, start_ns: int, seconds: float) -> set[tuple[str, int]]:
    """Every sample, as (GPU, time), that this part of the fleet has."""
    fleet = Simulated(fleet="small", start_ns=start_ns, seed=SEED, shard=(shard, AGENTS), duration_s=seconds)
    found: set[tuple[str, int]] = set()
    while True:
        try:
            reading = fleet.collect()
        except EndOfInput:
            return found
        for batch in reading.samples:
            found |= {(batch.gpus[gpu], int(time)) for gpu, time in zip(batch.gpu, batch.time_ns, strict=True)}


def arrived(log: Log) -> set[tuple[str, int]]:
    """Every sample in the log, as (GPU, time)."""
    found: set[tuple[str, int]] = set()
    for schema, gpus, value in log.telemetry():
        mask, names = codec.parse_schema(schema), gpus.split(",")
        rows = pl.read_ipc_stream(codec.schema_prefix(mask) + codec.decompress(value) + codec.END_OF_STREAM)
        found |= {(names[gpu], time) for gpu, time in rows.select("gpu", "time_ns").iter_rows()}
    return found


def counted(port: int, name: str) -> float:
    """A metric of an agent's own, summed over its labels."""
    lines = Server(port).fetch("/metrics")[1].decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"isotach_agent_{name}"))


def stored(site: Processes, port: int) -> float:
    """Samples that an agent without its log has on disk, at least: those counted before the queue last grew."""
    samples, waiting = counted(port, "samples_total"), counted(port, "queue_messages")
    site.until(lambda: counted(port, "queue_messages") > waiting, "another message waits")
    waiting = counted(port, "queue_messages")
    site.until(lambda: counted(port, "spool_messages") >= waiting, "what waited is on disk")
    return samples


def test_ten_minutes_without_a_log_cost_no_sample(log: Log, tmp_path: Path) -> None:
    """Twelve agents, one of them killed and one stopped meanwhile: what each had collected arrives, all of it."""
    start_ns = (int(time.time()) // 60 * 60 - SECONDS - 600) * 10**9
    ports = {shard: free_port() for shard in range(AGENTS)}

    def agent(site: Processes, shard: int, *, seconds: int = SECONDS) -> Process:
        fleet = ("--collector", "simulated", "--fleet", "small", "--seed", SEED, "--shard", f"{shard}/{AGENTS}")
        start = datetime.fromtimestamp(start_ns / 1e9, UTC).isoformat()
        times = ("--start", start, "--speed", SPEED, "--duration-s", seconds, "--batch-s", 5)
        spool = ("--spool", tmp_path / f"spool-{shard}", "--metrics-port", ports[shard])
        return site.start(f"agent-{shard}", "agent", *log.settings, *fleet, *times, *spool)

    with processes(tmp_path) as site:
        agents = {shard: agent(site, shard) for shard in range(AGENTS)}
        for port in ports.values():
            site.until(lambda port=port: Server(port).answers("/metrics"), "an agent answers")
        site.until(lambda: len(log.telemetry()) >= AGENTS, "telemetry arrives")
        log.away()
        gone = time.monotonic()
        site.until(lambda: all(counted(port, "log_available") == 0 for port in ports.values()), "all miss the log")
        known = stored(site, ports[0])
        agents[0].kill()
        agents[1].stop()
        time.sleep(max(0.0, OUTAGE_S - (time.monotonic() - gone)))
        log.back()
        for shard in (0, 1):  # what they had collected is sent, though they collect no more
            agents[shard] = agent(site, shard, seconds=1)
        for shard, one in agents.items():
            assert one.wait() == 0, shard
    found = arrived(log)
    for shard in range(2, AGENTS):
        expected = made_by(shard, start_ns=start_ns, seconds=SECONDS)
        assert len(expected) > 5 * SECONDS
        assert expected - found == set(), shard
    assert len(found & made_by(0, start_ns=start_ns, seconds=SECONDS)) >= known > 0
    everything = set().union(*(made_by(shard, start_ns=start_ns, seconds=SECONDS) for shard in range(AGENTS)))
    assert found <= everything
