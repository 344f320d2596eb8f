"""Operators' verdicts over real HTTP: what becomes an event, and what is refused before anything is written.

To add a case: a body and what is said about it.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.store import MINUTE, START, Clock, nodes, scores, served

from analytics.store import Store
from api import models
from api.app import create_app
from api.refusal import Refused
from api.verdicts import FIELDS, MAX_BODY, MAX_NOTE, QUESTION, Verdict, verdict_of
from isotach.commands.verdict import command
from telemetry.errors import IsotachError, TransportError
from telemetry.rows import check_event
from telemetry.tables import TIERS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
PIN = {"action": "pin", "gpu_uuid": "GPU-a", "tier": "quarantine", "by": "on-call", "note": "fan 3 is loud"}
TOKEN = {"authorization": "Bearer s3cret"}


class Log:
    """The log as the API sees it: takes messages, or is away."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, bytes | None, Mapping[str, bytes], bytes]] = []
        self.away = False

    def __call__(self, topic: str, key: bytes | None, headers: Mapping[str, bytes], value: bytes) -> None:
        if self.away:
            raise TransportError("no broker answers")
        self.taken.append((topic, key, headers, value))


@pytest.fixture(scope="module")
def log() -> Log:
    """The log of the server under test."""
    return Log()


@pytest.fixture(scope="module")
def server(log: Log) -> Iterator[httpx.Client]:
    """A real server with two GPUs on n1, one without a node, and a token."""
    with Store(None) as store:
        rows = [{"gpu_uuid": "GPU-a", "node": "n1"}, {"gpu_uuid": "GPU-b", "node": "n1"}]
        store.write({"scores": scores([*rows, {"gpu_uuid": "GPU-c", "node": None}]), "nodes": nodes([{"node": "n2"}])})
        with served(create_app(store, ingest=log, token="s3cret", clock_ns=Clock(START + MINUTE))) as client:
            yield client


@pytest.fixture(autouse=True)
def empty(log: Log) -> None:
    """Nothing has been said, and the log is there."""
    log.taken.clear()
    log.away = False


@pytest.mark.parametrize(
    ("body", "gpus", "key", "event"),
    [
        (PIN, 1, b"GPU-a", ("n1", "GPU-a", "operator_pin", 3, "on-call: fan 3 is loud")),
        ({"action": "pin", "node": "n1", "tier": "premium", "by": "ü"}, 2, b"n1", ("n1", "", "operator_pin", 0, "ü")),
        ({"action": "hold", "gpu_uuid": "GPU-c", "by": "x"}, 1, b"GPU-c", ("", "GPU-c", "operator_hold", 0, "x")),
        ({"action": "clear", "node": "n1", "by": "x"}, 2, b"n1", ("n1", "", "operator_clear", 0, "x")),
        ({"action": "reset_breaker", "by": "x"}, 3, b"fleet", ("", "", "breaker_reset", 0, "x")),
    ],
)
def test_a_verdict_becomes_one_event(
    server: httpx.Client, log: Log, body: dict[str, Any], gpus: int, key: bytes, event: tuple[Any, ...]
) -> None:
    """202 with the row of `events` that went into the log, stamped with the server's time."""
    answer = server.post("/v1/verdicts", json=body, headers=TOKEN)
    assert answer.status_code == 202, answer.text
    models.VerdictTaken.model_validate(answer.json(), strict=True)
    ((topic, found, headers, value),) = log.taken
    assert (topic, found, headers) == ("isotach.events", key, {"content-type": b"application/json"})
    assert json.loads(value) == answer.json()["event"] == check_event(json.loads(value))
    row = dict(zip(("node", "gpu_uuid", "kind", "code", "detail"), event, strict=True))
    assert answer.json() == {"accepted": 1, "gpus": gpus, "event": {"time_ns": START + MINUTE, **row}}


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer wrong", "Basic s3cret", "Bearer s3cret2"])
def test_a_verdict_needs_the_token(server: httpx.Client, log: Log, given: str) -> None:
    """The same token as for telemetry; without it even a bad body learns nothing else."""
    headers = {"authorization": given} if given else {}
    answer = server.post("/v1/verdicts", content=b"{", headers=headers)
    assert (answer.status_code, answer.json()["error"]["rule"]) == (401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert log.taken == []


@pytest.mark.parametrize(
    ("change", "status", "rule", "says"),
    [
        ({"gpu_uuid": "GPU-z"}, 404, "unknown_gpu", "'GPU-z'"),
        ({"gpu_uuid": None, "node": "n9"}, 404, "unknown_node", "'n9'"),
        ({"gpu_uuid": None, "node": "n2"}, 404, "unknown_node", "no GPU of node 'n2'"),
        ({"gpu_uuid": None}, 422, "bad_parameter", "gpu_uuid or node"),
        ({"node": "n1"}, 422, "bad_parameter", "exactly one"),
        ({"gpu_uuid": ""}, 422, "bad_parameter", "gpu_uuid"),
        ({"gpu_uuid": 7}, 422, "bad_parameter", "gpu_uuid=7"),
        ({"tier": None}, 422, "bad_parameter", "tier: a pin needs one of premium"),
        ({"tier": "gold"}, 422, "bad_parameter", "tier='gold'"),
        ({"action": "hold"}, 422, "bad_parameter", "tier: only a pin"),
        ({"action": "destroy"}, 422, "bad_parameter", "action='destroy'"),
        ({"action": "reset_breaker", "tier": None}, 422, "bad_parameter", "gpu_uuid: reset_breaker"),
        ({"by": None}, 422, "bad_parameter", "by"),
        ({"by": " "}, 422, "bad_parameter", "by: one line"),
        ({"by": "x" * 101}, 422, "bad_parameter", "by="),
        ({"note": "a\nb"}, 422, "bad_parameter", "note: one line"),
        ({"note": "x" * (MAX_NOTE + 1)}, 422, "bad_parameter", "500"),
        ({"until": "tomorrow"}, 422, "unknown_parameter", "action, gpu_uuid, node, tier, by, note"),
    ],
)
def test_a_wrong_verdict_is_named_and_nothing_is_written(
    server: httpx.Client, log: Log, change: dict[str, Any], status: int, rule: str, says: str
) -> None:
    """The field, what is wrong with it, and what to do."""
    body = {name: value for name, value in {**PIN, **change}.items() if value is not None}
    answer = server.post("/v1/verdicts", json=body, headers=TOKEN)
    assert (answer.status_code, answer.json()["error"]["rule"]) == (status, rule), answer.text
    assert says in answer.json()["error"]["detail"]
    assert answer.json()["error"]["remedy"]
    assert log.taken == []


@pytest.mark.parametrize(
    ("content", "kind", "status", "rule"),
    [
        (b"{", "application/json", 422, "not_json"),
        (b"[]", "application/json", 422, "not_an_object"),
        (json.dumps(PIN).encode(), "text/plain", 400, "unknown_content_type"),
        (json.dumps(PIN).encode(), "application/x-www-form-urlencoded", 400, "unknown_content_type"),
        (b" " * (MAX_BODY + 1), "application/json", 413, "too_large"),
    ],
)
def test_only_a_small_json_object_is_read(
    server: httpx.Client, log: Log, content: bytes, kind: str, status: int, rule: str
) -> None:
    """What the form of another site's page could send is refused, whatever is in it."""
    answer = server.post("/v1/verdicts", content=content, headers={**TOKEN, "content-type": kind})
    assert (answer.status_code, answer.json()["error"]["rule"]) == (status, rule)
    assert log.taken == []


def test_a_log_that_is_away_is_told(server: httpx.Client, log: Log) -> None:
    """503 with when to come back: nobody believes a verdict that nobody heard."""
    log.away = True
    answer = server.post("/v1/verdicts", json=PIN, headers=TOKEN)
    assert (answer.status_code, answer.json()["error"]["rule"]) == (503, "log_unavailable")
    assert int(answer.headers["retry-after"]) > 0


def test_a_replica_without_a_log_takes_none() -> None:
    """It says where to go instead."""
    with Store(None) as store, served(create_app(store)) as client:
        answer = client.post("/v1/verdicts", json=PIN)
    assert (answer.status_code, answer.json()["error"]["rule"]) == (503, "no_telemetry_here")


def run(capsys: pytest.CaptureFixture[str], server: httpx.Client, *words: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of `isotach verdict` against the server."""
    try:
        with pytest.raises(SystemExit) as ended:
            command.main([*words, "--server", str(server.base_url)], prog_name="isotach verdict")
    except IsotachError as error:  # the one line and status 1 that `isotach.cli.main` makes of it
        return 1, "", str(error)
    told = capsys.readouterr()
    return int(ended.value.code or 0), told.out, told.err


@pytest.mark.parametrize(
    ("words", "says", "event"),
    [
        (["pin", "GPU-a", "--tier", "premium"], "taken: pin as premium, GPU GPU-a", ("operator_pin", "GPU-a", "n1", 0)),
        (["hold", "n1"], "taken: hold, node n1 (2 GPUs)", ("operator_hold", "", "n1", 0)),
        (["clear", "GPU-c"], "taken: clear, GPU GPU-c", ("operator_clear", "GPU-c", "", 0)),
        (["reset-breaker"], "taken: the breaker is reset", ("breaker_reset", "", "", 0)),
    ],
)
def test_the_command_says_what_was_taken(
    server: httpx.Client,
    log: Log,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    says: str,
    event: tuple[Any, ...],
) -> None:
    """A name is a GPU's, or else a node's; who says so is the login name."""
    monkeypatch.setenv("ISOTACH_TOKEN", "s3cret")
    monkeypatch.setenv("LOGNAME", "on-call")
    assert run(capsys, server, *words, "--note", "why")[:2] == (0, says + "\n")
    ((*_, value),) = log.taken
    row = json.loads(value)
    assert (row["kind"], row["gpu_uuid"], row["node"], row["code"]) == event
    assert row["detail"] == "on-call: why"
    code, text, _ = run(capsys, server, *words, "--by", "x", "--format", "json")
    assert (code, json.loads(text)["event"]["detail"]) == (0, "x")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["hold", "nobody"], 1, "no GPU and no node 'nobody'"),
        (["hold", "GPU-a", "--note", "x" * 501], 1, "500"),
        (["pin", "GPU-a"], 2, "--tier"),
        (["hold", "GPU-a", "--tier", "premium"], 2, "--tier"),
        (["clear"], 2, "name it"),
        (["reset-breaker", "GPU-a"], 2, "of no GPU"),
    ],
)
def test_the_command_says_what_is_wrong(
    server: httpx.Client,
    log: Log,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    code: int,
    says: str,
) -> None:
    """One line, and nothing is written."""
    monkeypatch.setenv("ISOTACH_TOKEN", "s3cret")
    found, _, error = run(capsys, server, *words)
    assert found == code
    assert says in " ".join(error.split())
    assert log.taken == []


def test_the_command_without_the_token_says_which_setting(
    server: httpx.Client, log: Log, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And does not show the one that was wrong."""
    monkeypatch.setenv("ISOTACH_TOKEN", "another-token")
    code, _, error = run(capsys, server, "hold", "GPU-a")
    assert code == 1
    assert "token" in error
    assert "another-token" not in error
    assert log.taken == []


VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from([*TIERS, "pin", "hold"])


@settings(max_examples=100, deadline=None)
@given(body=st.dictionaries(st.sampled_from([*FIELDS, "x"]), VALUES))
def test_no_body_breaks_the_check(body: dict[str, Any]) -> None:
    """Whatever comes, it is a verdict or refused by a named rule."""
    try:
        verdict = verdict_of(json.dumps(body).encode())
    except Refused:
        return
    assert verdict.by
    assert (verdict.tier is not None) == (verdict.action == "pin")


def test_the_page_and_the_document_say_what_the_code_does(server: httpx.Client) -> None:
    """The example fits its model, the page has every field, and the answer is documented as 202."""
    QUESTION.model.model_validate(QUESTION.example, strict=True)
    Verdict.model_validate(QUESTION.asked)
    section = PAGE.partition("## `POST /v1/verdicts`")[2].partition("\n## ")[0]
    assert [field for field in FIELDS if f"`{field}`" not in section] == []
    operation = server.get("/openapi.json").json()["paths"]["/v1/verdicts"]["post"]
    assert set(operation["requestBody"]["content"]["application/json"]["schema"]["properties"]) == set(FIELDS)
    assert {"202", "401", "404", "422", "503"} <= set(operation["responses"])
    assert "200" not in operation["responses"]
