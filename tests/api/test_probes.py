"""Health, readiness and metrics."""

import httpx
from prometheus_client.parser import text_string_to_metric_families
from support.store import MINUTE, START, Clock, scores, served

from analytics.store import Store
from api.app import create_app


def samples(client: httpx.Client) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample of /metrics."""
    text = client.get("/metrics").text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_process_that_waits_is_alive_and_not_ready() -> None:
    """Orchestrators keep a process that is catching up, and send nobody to it yet."""
    waiting = ["the store is catching up with the log"]
    with Store(None) as store, served(create_app(store, clock_ns=Clock(), ready=lambda: waiting)) as client:
        assert client.get("/healthz").json() == {"status": "alive"}
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()["waiting_for"]) == (503, waiting)
        waiting.clear()
        assert client.get("/readyz").json() == {"status": "ready", "waiting_for": []}


def test_metrics_say_what_is_served_and_how_old_it_is() -> None:
    """Requests by route, not by path; rows, version and age of the store."""
    with Store(None) as store, served(create_app(store, clock_ns=Clock(START + 2 * MINUTE))) as client:
        assert not any(name == "isotach_as_of_age_seconds" for name, _ in samples(client))
        store.write({"scores": scores([{"gpu_uuid": "GPU-1"}])})
        for path in ("/v1/gpus/GPU-1", "/v1/gpus/GPU-2", "/v1/gpus/GPU-3", "/planets/7"):
            client.get(path)
        found = samples(client)
    detail = ("route", "/v1/gpus/{gpu_uuid}")
    assert found["isotach_http_requests_total", (detail, ("status", "200"))] == 1
    assert found["isotach_http_requests_total", (detail, ("status", "404"))] == 2
    assert found["isotach_http_requests_total", (("route", "unknown"), ("status", "404"))] == 1
    assert found["isotach_http_request_seconds_count", (detail,)] == 3
    assert found["isotach_store_version", ()] == 1
    assert found["isotach_store_rows", (("table", "scores"),)] == 1
    assert found["isotach_as_of_age_seconds", ()] == 120
