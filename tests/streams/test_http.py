"""The agent's road without Kafka, against a real HTTP server."""

import json
import logging
import random
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote_to_bytes

import pytest
from support.transports import out

from streams import Outgoing
from streams.http import HttpProducer
from streams.topics import EVENTS, TELEMETRY
from telemetry.errors import SettingsError, TransportError

TOKEN = "s3cret-token"


class Endpoint:
    """A server that answers as it is told: statuses in turn, then 202; `drop` closes a connection without a word."""

    def __init__(self) -> None:
        self.answers: list[int | str] = []
        self.headers: dict[str, str] = {}
        self.body = b'{"accepted":1}'
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.connections: set[int] = set()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 5

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                endpoint.requests.append(({"path": self.path, **dict(self.headers.items())}, body))
                endpoint.connections.add(self.client_address[1])
                answer = endpoint.answers.pop(0) if endpoint.answers else 202
                if answer == "drop":
                    self.close_connection = True
                    return
                self.send_response(int(answer))
                for name, value in endpoint.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(endpoint.body)))
                self.end_headers()
                self.wfile.write(endpoint.body)

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False  # closing waits for them
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def values(self) -> list[bytes]:
        """Bodies in the order they came."""
        return [body for _, body in self.requests]

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.close()


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def _producer(endpoint: Endpoint, clock: Clock, **settings: object) -> HttpProducer:
    return HttpProducer(server=endpoint.url, sleep=clock.sleep, monotonic=clock, **settings)  # type: ignore[arg-type]


def test_a_message_arrives_as_the_server_expects_it(endpoint: Endpoint, clock: Clock) -> None:
    """Body, content type, key, topic, headers and token, with whatever bytes are in them, over one connection."""
    producer = _producer(endpoint, clock, token=TOKEN)
    headers = {"content-type": b"application/x", "schema": b"isotach.telemetry/1;ff", "node": "n µ\n%".encode()}
    producer.send(Outgoing(topic=TELEMETRY, key="n µ".encode(), value=b"\x00\xff", headers=headers))
    producer.send(Outgoing(topic=EVENTS, key=None, value=b"{}"))
    producer.flush()
    (first, body), (second, _) = endpoint.requests
    assert body == b"\x00\xff"
    assert first["path"] == "/v1/telemetry"
    assert first["Authorization"] == f"Bearer {TOKEN}"
    assert first["Content-Type"] == "application/x"
    assert first["Isotach-schema"] == "isotach.telemetry/1;ff"
    assert unquote_to_bytes(first["Isotach-node"]) == "n µ\n%".encode()
    assert unquote_to_bytes(first["Isotach-Key"]) == "n µ".encode()
    assert "Isotach-Topic" not in first
    assert "Isotach-content-type" not in first
    assert second["Isotach-Topic"] == EVENTS
    assert "Isotach-Key" not in second
    assert second["Content-Type"] == "application/json"
    assert len(endpoint.connections) == 1
    producer.close()


def test_trouble_is_waited_out_in_order(endpoint: Endpoint, clock: Clock) -> None:
    """Overload, failures and dropped connections: each message is tried until it is stored, then the next."""
    endpoint.answers = [503, 500, "drop", "drop", 429, 202, 202]
    producer = _producer(endpoint, clock)
    for text in ("1", "2", "3"):
        producer.send(out(TELEMETRY, "n", text))
    assert endpoint.values == [b"1"] * 6 + [b"2", b"3"]
    assert clock.slept == sorted(clock.slept)
    producer.close()


def test_the_servers_wish_to_wait_is_heard(endpoint: Endpoint, clock: Clock) -> None:
    """Retry-After is a lower bound for the pause."""
    endpoint.answers, endpoint.headers = [503], {"Retry-After": "5"}
    producer = _producer(endpoint, clock)
    producer.send(out(TELEMETRY, "n", "1"))
    [pause] = clock.slept
    assert 5.0 <= pause <= 7.5
    producer.close()


def test_agents_that_lost_a_server_together_come_back_apart(endpoint: Endpoint) -> None:
    """A hundred that get the same refusal at the same moment: no tenth of the time in which they return has a third."""
    returned = []
    for seed in range(100):
        endpoint.answers, endpoint.headers = [503], {"Retry-After": "5"}
        clock = Clock()
        producer = _producer(endpoint, clock, jitter=random.Random(seed))
        producer.send(out(TELEMETRY, "n", "1"))
        returned.append(clock.now)
        producer.close()
    counted = Counter(int(4 * moment) for moment in returned)
    assert max(counted.values()) < 33


def test_patience_ends_with_an_error_and_the_message_stays_the_callers(endpoint: Endpoint, clock: Clock) -> None:
    """A server that stays busy or away is an error that names it; sent again later, the message arrives."""
    endpoint.answers = [503] * 50
    endpoint.body = b'{"error": {"rule": "log_unavailable", "detail": "not stored"}}'
    producer = _producer(endpoint, clock, patience_s=10.0)
    with pytest.raises(TransportError, match=rf"{endpoint.url} answers 503: not stored"):
        producer.send(out(TELEMETRY, "n", "1"))
    assert clock.now <= 10.0
    endpoint.answers.clear()
    producer.send(out(TELEMETRY, "n", "1"))
    producer.close()
    away = HttpProducer(server="127.0.0.1:9", sleep=clock.sleep, monotonic=clock)
    with pytest.raises(TransportError, match=r"http://127\.0\.0\.1:9 cannot be reached"):
        away.send(out(TELEMETRY, "n", "1"))
    away.close()


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_refused_message_is_counted_by_rule_and_never_sent_again(
    endpoint: Endpoint, clock: Clock, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """What the server refuses for what it is holds up nobody; the rule is the server's, or the status."""
    endpoint.answers = [status, 202]
    endpoint.body = b'{"error": {"rule": "not_zstd", "detail": "value of 3 bytes"}}'
    producer = _producer(endpoint, clock)
    with caplog.at_level(logging.ERROR):
        producer.send(out(TELEMETRY, "n", "bad"))
    producer.send(out(TELEMETRY, "n", "good"))
    assert endpoint.values == [b"bad", b"good"]
    assert producer.refused == {"not_zstd": 1}
    assert "not_zstd: value of 3 bytes" in caplog.text
    for body in (b"<html>", b"[]", b'{"error": 3}', b'{"error": {}}', b"[" * 60_000, b"x" * 100_000):
        endpoint.answers, endpoint.body = [status], body
        producer.send(out(TELEMETRY, "n", "bad"))
    assert producer.refused == {"not_zstd": 1, f"http_{status}": 6}
    producer.close()


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_token_is_told_and_never_shown(endpoint: Endpoint, clock: Clock, status: int) -> None:
    """The error names the setting, not the token."""
    endpoint.answers = [status, status]
    producer = _producer(endpoint, clock, token=TOKEN)
    with pytest.raises(TransportError, match=f"answers {status}: the setting token") as refused:
        producer.send(out(TELEMETRY, "n", "1"))
    assert TOKEN not in str(refused.value) + repr(producer)
    assert clock.slept == []
    producer.close()
    producer = _producer(endpoint, clock)
    with pytest.raises(TransportError, match="set token"):
        producer.send(out(TELEMETRY, "n", "1"))
    producer.close()


@pytest.mark.parametrize("status", [301, 404, 405])
def test_another_server_is_told_apart(endpoint: Endpoint, clock: Clock, status: int) -> None:
    """A server that knows no telemetry is an error that names the setting, and the message is kept by the caller."""
    endpoint.answers = [status]
    producer = _producer(endpoint, clock)
    with pytest.raises(TransportError, match=f"answers {status}: is the setting server right"):
        producer.send(out(TELEMETRY, "n", "1"))
    producer.close()


def test_what_http_cannot_carry_is_refused(endpoint: Endpoint, clock: Clock) -> None:
    """Deletions, and message headers that would be taken for the key or the topic."""
    producer = _producer(endpoint, clock)
    with pytest.raises(TransportError, match="deletion"):
        producer.send(out(TELEMETRY, "n", None))
    with pytest.raises(TransportError, match="key"):
        producer.send(Outgoing(topic=TELEMETRY, key=b"n", value=b"1", headers={"key": b"x"}))
    for headers in ({"two words": b"x"}, {"line\nend": b"x"}, {"content-type": b"a\r\nb"}):
        with pytest.raises(TransportError, match="cannot be sent"):
            producer.send(Outgoing(topic=TELEMETRY, key=b"n", value=b"1", headers=headers))
    assert endpoint.requests == []
    producer.close()


@pytest.mark.parametrize("server", ["", "ftp://h", "http://", "http://h:x", "http://u:hunter2@h:1", "http://h:99999"])
def test_a_bad_address_is_a_settings_error(server: str) -> None:
    """It is told before anything is sent, without a password that stands in it."""
    with pytest.raises(SettingsError) as refused:
        HttpProducer(server=server)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("token", ["a b\n", " x", "µ"])
def test_a_token_that_no_header_can_hold_is_a_settings_error(token: str) -> None:
    """A stray line end from a file is told at the start, without the token."""
    with pytest.raises(SettingsError, match="token") as refused:
        HttpProducer(server="h:1", token=token)
    assert token not in str(refused.value)


def test_a_path_before_the_api_is_kept(endpoint: Endpoint, clock: Clock) -> None:
    """Behind a proxy the server may live under a path."""
    producer = HttpProducer(server=f"{endpoint.url}/isotach/", sleep=clock.sleep, monotonic=clock)
    producer.send(out(TELEMETRY, "n", json.dumps({})))
    assert endpoint.requests[0][0]["path"] == "/isotach/v1/telemetry"
    producer.close()


def test_a_restarted_server_is_found_again(clock: Clock) -> None:
    """A connection that the server closed meanwhile costs nothing but a new one."""
    first = Endpoint()
    first.headers = {"Connection": "close"}
    producer = _producer(first, clock)
    producer.send(out(TELEMETRY, "n", "1"))
    producer.send(out(TELEMETRY, "n", "2"))
    assert first.values == [b"1", b"2"]
    assert clock.slept == []
    producer.close()
    first.close()
