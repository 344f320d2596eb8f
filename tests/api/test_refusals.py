"""Every refusal has one shape, names what is wrong, and shows no stack trace."""

import httpx
import pytest
from support.store import Clock, scores, served

from analytics.store import Store
from api.app import create_app


@pytest.mark.parametrize(
    ("path", "rule", "says"),
    [
        ("/v1/gpus?colour=red", "unknown_parameter", "tier, node, class"),
        ("/v1/gpus?tier=gold", "bad_parameter", "premium, standard, degraded, quarantine, unknown"),
        ("/v1/gpus?class=graphics", "bad_parameter", "compute, memory, communication, mixed"),
        ("/v1/gpus?limit=ten", "bad_parameter", "whole number from 0 to 100000"),
        ("/v1/gpus?limit=-1", "bad_parameter", "limit='-1'"),
        ("/v1/gpus?limit=100001", "bad_parameter", "100000"),
        ("/v1/gpus?limit=1&limit=2", "bad_parameter", "twice"),
        ("/v1/gpus?limit=%D9%A3", "bad_parameter", "limit"),
        ("/v1/gpus?node=", "bad_parameter", "node"),
        ("/v1/gpus?node=%ff", "bad_parameter", "UTF-8"),
        ("/v1/gpus?node=a%00b", "bad_parameter", "printable"),
        ("/v1/gpus?level=rack", "bad_parameter", "together"),
        ("/v1/gpus?level=galaxy&value=1", "bad_parameter", "rack"),
        ("/v1/gpus?after=GPU-zz", "bad_parameter", "GPU-zz"),
        ("/v1/gpus?after=GPU-a&offset=1", "bad_parameter", "not both"),
        ("/v1/gpus/GPU-c?windows=0", "bad_parameter", "windows"),
        ("/v1/blocks?gpus=0", "bad_parameter", "gpus"),
        ("/v1/blocks?level=galaxy", "bad_parameter", "galaxy"),
        ("/v1/transitions?since=yesterday", "bad_parameter", "ISO 8601"),
        ("/v1/transitions?since=2026-01-01T00:00:00", "bad_parameter", "zone"),
        ("/v1/transitions?since=99999999999999999999999", "bad_parameter", "since"),
        ("/v1/nodes?" + "&".join(f"x{i}=1" for i in range(99)), "bad_parameter", "32"),
    ],
)
def test_a_wrong_parameter_is_named_with_what_is_allowed(client: httpx.Client, path: str, rule: str, says: str) -> None:
    """Nobody gets an answer to a question that they did not ask: 422, the parameter, the allowed values."""
    answer = client.get(path)
    assert answer.status_code == 422, answer.text
    error = answer.json()["error"]
    assert error["rule"] == rule
    assert says in error["detail"]
    assert error["remedy"]


@pytest.mark.parametrize(
    ("method", "path", "status", "rule"),
    [
        ("GET", "/v1/planets", 404, "not_found"),
        ("GET", "/elsewhere", 404, "not_found"),
        ("GET", "/v1/gpus/GPU-nobody", 404, "unknown_gpu"),
        ("GET", "/v1/gpus/%00%ff", 404, "unknown_gpu"),
        ("DELETE", "/v1/gpus", 405, "method_not_allowed"),
        ("GET", "/v1/telemetry", 405, "method_not_allowed"),
        ("POST", "/v1/telemetry", 503, "no_telemetry_here"),
    ],
)
def test_every_refusal_has_one_shape(client: httpx.Client, method: str, path: str, status: int, rule: str) -> None:
    """Programs read `rule`, people `detail` and `remedy`, whatever was wrong."""
    answer = client.request(method, path)
    assert (answer.status_code, answer.json()["error"]["rule"]) == (status, rule)
    assert answer.headers["cache-control"] == "no-store"


def test_a_failure_inside_shows_no_stack_trace() -> None:
    """A store that is gone is 503, a defect is 500, and neither tells a stranger about our files."""
    store = Store(None)
    store.write({"scores": scores([{"gpu_uuid": "GPU-1"}])})

    def broken() -> list[str]:
        raise ZeroDivisionError("secret detail")

    with served(create_app(store, clock_ns=Clock(), ready=broken)) as client:
        failed = client.get("/readyz")
        store.close()
        gone = client.get("/v1/transitions")
    assert (failed.status_code, failed.json()["error"]["rule"]) == (500, "internal")
    assert (gone.status_code, gone.json()["error"]["rule"]) == (503, "store_unavailable")
    for answer in (failed, gone):
        assert "Traceback" not in answer.text
        assert "secret" not in answer.text
        assert ".py" not in answer.text
