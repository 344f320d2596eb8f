"""Posted telemetry: checked, acknowledged by the log, then accepted; anything else is refused by rule."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fleet import batch
from support.store import START, Clock, scores, served

from analytics.store import Store
from api.app import create_app
from api.messages import TOPICS, check
from telemetry.codec import ARROW, Encoder
from telemetry.errors import BadInput, TransportError

SAMPLE = {"gpu_uuid": "GPU-1", "time_ns": START, "sm_clock_mhz": 1980, "power_w": 512.5}
TELEMETRY = {"node": "n1", "interval_s": 1.0, "samples": [SAMPLE]}
EVENT = {"time_ns": START, "node": "n1", "gpu_uuid": "GPU-1", "kind": "xid", "code": 79}
JOBS = {
    "node": "n1",
    "seen_ns": START,
    "jobs": [{"gpu_uuid": "GPU-1", "job_id": "7", "source": "slurm", "started_ns": START, "workload_class": "memory"}],
}
INVENTORY = {"node": "n1", "seen_ns": START, "gpus": [{"gpu_uuid": "GPU-1", "slot": 0}]}
MEASUREMENT = {
    "time_ns": START, "scope": "gpu", "subject": "GPU-1", "name": "sgemm", "workload_class": "compute", "value": 1.0,
    "unit": "ms", "higher_is_better": False,
}  # fmt: skip
Taken = tuple[str, bytes | None, Mapping[str, bytes], bytes]


class Log:
    """The log as the API sees it: takes messages, or is away."""

    def __init__(self) -> None:
        self.taken: list[Taken] = []
        self.fails: Exception | None = None

    def __call__(self, topic: str, key: bytes | None, headers: Mapping[str, bytes], value: bytes) -> None:
        if self.fails is not None:
            raise self.fails
        self.taken.append((topic, key, headers, value))


Post = Callable[..., httpx.Response]


@pytest.fixture(scope="module")
def log() -> Log:
    """The log of the server under test."""
    return Log()


@pytest.fixture(scope="module")
def server(log: Log) -> Iterator[httpx.Client]:
    """A real server that takes telemetry with a token."""
    with Store(None) as store, served(create_app(store, ingest=log, token="s3cret", clock_ns=Clock())) as client:
        yield client


@pytest.fixture
def post(server: httpx.Client, log: Log) -> Post:
    """Post a body with the right token; the log is empty and well before."""
    log.taken.clear()
    log.fails = None

    def send(body: Any, topic: str | None = None, **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        chosen = {"authorization": "Bearer s3cret"} | ({"isotach-topic": topic} if topic else {}) | named
        return server.post("/v1/telemetry", content=content, headers=chosen)

    return send


def test_what_an_agent_sends_arrives_as_it_was(post: Post, log: Log) -> None:
    """An encoded batch goes into the log byte by byte, with its key and its headers."""
    encoded = Encoder().encode(batch("n-ü/1"))
    headers = {f"isotach-{name}": quote(value) for name, value in encoded.headers.items() if name != "content-type"}
    answer = post(encoded.value, content_type=ARROW, isotach_key=quote(encoded.key), **headers)
    assert (answer.status_code, answer.json()) == (202, {"accepted": 1}), answer.text
    assert log.taken == [("isotach.telemetry", encoded.key, encoded.headers, encoded.value)]


@pytest.mark.parametrize(
    ("topic", "message", "key"),
    [
        ("isotach.telemetry", TELEMETRY, b"n1"),
        ("isotach.events", EVENT, b"GPU-1"),
        ("isotach.events", EVENT | {"gpu_uuid": None}, b"n1"),
        ("isotach.inventory", INVENTORY, b"n1"),
        ("isotach.measurements", MEASUREMENT, b"GPU-1"),
        ("isotach.jobs", JOBS, b"n1"),
    ],
)
def test_anyone_with_curl_can_send(post: Post, log: Log, topic: str, message: Any, key: bytes) -> None:
    """A JSON object is enough: the key is made of it, and the content type that curl sends by itself is fine."""
    answer = post(message, topic, content_type="application/x-www-form-urlencoded")
    assert (answer.status_code, answer.json()) == (202, {"accepted": 1}), answer.text
    assert log.taken == [(topic, key, {"content-type": b"application/json"}, json.dumps(message).encode())]


def test_a_list_becomes_one_message_each(post: Post, log: Log) -> None:
    """Many results in one request are many messages with their own keys."""
    rows = [MEASUREMENT | {"subject": f"GPU-{i}", "value": i + 1.5} for i in range(3)]
    assert post(rows, "isotach.measurements").json() == {"accepted": 3}
    assert [(key, json.loads(value)) for _, key, _, value in log.taken] == [
        (f"GPU-{i}".encode(), rows[i]) for i in range(3)
    ]


def test_nothing_is_written_when_one_of_a_list_is_bad(post: Post, log: Log) -> None:
    """All of a request or nothing of it is taken, and the bad one is pointed at."""
    answer = post([EVENT, EVENT | {"code": "seventy-nine"}], "isotach.events")
    assert answer.status_code == 400
    assert answer.json()["error"]["detail"].startswith("[1]: events.code")
    assert log.taken == []


ARROW_HEADERS = {
    "content_type": ARROW,
    **{
        "isotach_" + name.replace("-", "_"): value.decode()
        for name, value in Encoder().encode(batch("n1")).headers.items()
        if name != "content-type"
    },
}
ARROW_VALUE = Encoder().encode(batch("n1")).value


@pytest.mark.parametrize(
    ("body", "topic", "headers", "rule"),
    [
        (b"", None, {}, "empty"),
        (b"{", None, {}, "not_json"),
        (b"\xff\xfe", None, {"content_type": "application/json"}, "not_json"),
        (b'{"node":"n1","interval_s":NaN,"samples":[]}', None, {}, "not_json"),
        (b"[" * 100_000, None, {"content_type": "application/json"}, "not_json"),
        (b"hello", None, {"content_type": "text/plain"}, "unknown_content_type"),
        ([TELEMETRY], None, {"content_type": "application/json"}, "not_an_object"),
        (TELEMETRY | {"node": ""}, None, {}, "bad_node"),
        (TELEMETRY | {"node": "x" * 300}, None, {}, "bad_node"),
        (TELEMETRY | {"node": None}, None, {}, "bad_node"),
        (TELEMETRY | {"interval_s": 0}, None, {}, "bad_interval"),
        (TELEMETRY | {"interval_s": "1"}, None, {}, "bad_interval"),
        (TELEMETRY | {"samples": []}, None, {}, "missing_field"),
        (TELEMETRY | {"samples": [1]}, None, {}, "not_an_object"),
        (TELEMETRY | {"samples": [{"gpu_uuid": "GPU-1"}]}, None, {}, "missing_field"),
        (TELEMETRY | {"samples": [SAMPLE | {"time_ns": True}]}, None, {}, "wrong_type"),
        (TELEMETRY | {"samples": [SAMPLE | {"power_w": "512 W"}]}, None, {}, "wrong_type"),
        (TELEMETRY | {"samples": [SAMPLE | {"gpu_uuid": f"GPU-{i}"} for i in range(1025)]}, None, {}, "bad_gpus"),
        (TELEMETRY, None, {"isotach_key": "n2"}, "wrong_key"),
        (TELEMETRY, "isotach.scores", {}, "unknown_topic"),
        (TELEMETRY, None, {"content_encoding": "gzip"}, "unknown_content_type"),
        (EVENT | {"time_ns": None}, "isotach.events", {}, "missing_field"),
        ([], "isotach.events", {}, "empty"),
        (INVENTORY | {"gpus": [{"gpu_uuid": "GPU-1"}] * 2}, "isotach.inventory", {}, "repeated_gpu"),
        (INVENTORY, "isotach.inventory", {"isotach_key": "n2"}, "wrong_key"),
        (MEASUREMENT | {"workload_class": "graphics"}, "isotach.measurements", {}, "unknown_class"),
        (ARROW_VALUE, None, {"content_type": ARROW}, "unknown_schema"),
        (ARROW_VALUE, None, ARROW_HEADERS | {"isotach_schema": "isotach.telemetry/1;3"}, "wrong_schema"),
        (ARROW_VALUE, None, ARROW_HEADERS | {"isotach_schema": "isotach.telemetry/9;3"}, "unknown_schema"),
        (ARROW_VALUE[:-1] + b"?", None, ARROW_HEADERS, "not_zstd"),
        (b"\x00" * 64, None, ARROW_HEADERS, "not_zstd"),
        (ARROW_VALUE, None, ARROW_HEADERS | {"isotach_gpus": "GPU-1,GPU-1"}, "bad_gpus"),
        (ARROW_VALUE, None, ARROW_HEADERS | {"isotach_interval_s": "soon"}, "bad_interval"),
        (ARROW_VALUE, None, ARROW_HEADERS | {"isotach_node": "%ff"}, "bad_header"),
    ],
)
def test_a_bad_message_is_refused_with_the_rules_name(
    post: Post, log: Log, body: Any, topic: str | None, headers: dict[str, str], rule: str
) -> None:
    """The sender learns at once which rule, what is wrong and what to do; nothing reaches the log."""
    answer = post(body, topic, **headers)
    assert (answer.status_code, answer.json()["error"]["rule"]) == (400, rule), answer.text
    assert answer.json()["error"]["remedy"]
    assert log.taken == []


def test_a_large_body_is_refused_before_it_is_read(post: Post, log: Log, server: httpx.Client) -> None:
    """More than 1 MiB is 413, announced or not."""
    assert post(b"x" * ((1 << 20) + 1)).json()["error"]["rule"] == "too_large"

    def endless() -> Iterator[bytes]:
        for _ in range(40):
            yield b"x" * 65_536

    answer = server.post("/v1/telemetry", content=endless(), headers={"authorization": "Bearer s3cret"})
    assert answer.status_code == 413
    assert log.taken == []


def test_while_the_log_is_away_the_sender_is_told_to_come_back(post: Post, log: Log) -> None:
    """Nothing is said to be accepted before the log has it; the same request works later."""
    log.fails = TransportError("no broker answers")
    answer = post(TELEMETRY)
    assert (answer.status_code, answer.json()["error"]["rule"]) == (503, "log_unavailable")
    assert int(answer.headers["retry-after"]) > 0
    log.fails = None
    assert post(TELEMETRY).status_code == 202


def test_a_slow_log_keeps_no_reader_waiting() -> None:
    """While every post waits for the log, rankings are built and served as ever."""
    go_on = threading.Event()

    def slow(*_: object) -> None:
        go_on.wait(20)

    with Store(None) as store, served(create_app(store, ingest=slow, clock_ns=Clock())) as client:
        posts = [
            threading.Thread(target=client.post, args=("/v1/telemetry",), kwargs={"json": TELEMETRY}) for _ in range(60)
        ]
        for one in posts:
            one.start()
        try:
            store.write({"scores": scores([{"gpu_uuid": "GPU-1"}])})
            for limit in range(1, 6):
                assert client.get(f"/v1/gpus?limit={limit}", timeout=5).json()["total"] == 1
        finally:
            go_on.set()
            for one in posts:
                one.join()


def test_the_logs_own_refusal_is_the_senders_to_mend(post: Post, log: Log) -> None:
    """What the log refuses is a 400 with its rule, not a failure of the server."""
    log.fails = BadInput("too_many_headers", "33 headers")
    assert post(TELEMETRY).json()["error"]["rule"] == "too_many_headers"


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer wrong", "Basic s3cret", "Bearer s3cret2", "Bearer s3cr\xe9t"])
def test_a_wrong_token_learns_nothing(server: httpx.Client, log: Log, given: str) -> None:
    """Without the token even a bad body is only told that a token is needed."""
    log.taken.clear()
    headers = {"authorization": given.encode("latin-1")} if given else {}
    answer = server.post("/v1/telemetry", content=b"{", headers=headers)
    assert (answer.status_code, answer.json()["error"]["rule"]) == (401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert log.taken == []


def test_rejected_posts_are_counted_by_rule(post: Post, server: httpx.Client) -> None:
    """An operator sees which rule refuses how much."""
    post(TELEMETRY | {"node": ""})
    post(TELEMETRY)
    text = server.get("/metrics").text
    assert 'isotach_posts_rejected_total{rule="bad_node"}' in text
    assert 'isotach_posts_accepted_total{topic="isotach.telemetry"}' in text


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*TELEMETRY, *SAMPLE, *EVENT, *INVENTORY, *MEASUREMENT]), inner, max_size=5)
    ),
    max_leaves=12,
)


@settings(max_examples=80, deadline=None)
@given(topic=st.sampled_from(sorted(TOPICS)), value=JSON_VALUES)
def test_no_json_breaks_the_check(topic: str, value: Any) -> None:
    """Whatever JSON comes, it is either taken or refused by a named rule."""
    try:
        taken = check(topic, None, {}, json.dumps(value).encode())
    except BadInput:
        return
    assert all(message.key for message in taken)


@settings(max_examples=80, deadline=None)
@given(
    cut=st.integers(0, len(ARROW_VALUE)),
    flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3),
)
def test_no_bytes_break_the_check(cut: int, flips: list[tuple[int, int]]) -> None:
    """A damaged Arrow message is refused by a named rule, never a crash."""
    damaged = bytearray(ARROW_VALUE[:cut])
    for position, byte in flips:
        if damaged:
            damaged[position % len(damaged)] = byte
    headers = {name.removeprefix("isotach_").replace("_", "-"): value.encode() for name, value in ARROW_HEADERS.items()}
    try:
        taken = check("isotach.telemetry", None, headers, bytes(damaged))
    except BadInput:
        return
    assert taken[0].value == damaged
