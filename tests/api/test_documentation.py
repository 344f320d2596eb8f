"""The OpenAPI document and the page in docs/ say what the code does."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from analytics.store import Store
from api.app import ENDPOINTS, create_app
from api.endpoint import Endpoint
from api.metrics import Metrics
from api.refusal import REMEDIES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def document(store: Store) -> dict[str, Any]:
    """The OpenAPI document."""
    return create_app(store).openapi()


def test_every_route_has_summary_model_and_example(document: dict[str, Any]) -> None:
    """A client can be generated from the document alone."""
    lacking = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            content = next(told for code, told in operation["responses"].items() if code[0] == "2").get("content", {})
            described = any(part.get("schema") and part.get("example") is not None for part in content.values())
            if not operation.get("summary") or not described:
                lacking.append(f"{method} {path}")
    assert lacking == []


def test_every_route_and_parameter_is_on_the_page(store: Store) -> None:
    """docs/api.md names each route under its own heading, and each parameter."""
    routes = [route.path_format for route in create_app(store).routes if isinstance(route, APIRoute)]
    assert [path for path in routes if f"`{path}`" not in PAGE and f" {path}`" not in PAGE] == []
    for endpoint in ENDPOINTS:
        section = PAGE.partition(f"## `GET {endpoint.path}`")[2].partition("\n## ")[0]
        assert section, endpoint.path
        assert [one.name for one in endpoint.parameters if f"`{one.name}`" not in section] == [], endpoint.path


def test_every_metric_and_rule_is_on_the_page(store: Store) -> None:
    """docs/api.md explains every metric, and every rule of a refusal that is not a dead letter's."""
    families = [family.name for family in Metrics(store, clock_ns=lambda: 0).registry.collect()]
    assert [name for name in families if name not in PAGE] == []
    assert [rule for rule in REMEDIES if f"`{rule}`" not in PAGE] == []


OPEN = [endpoint for endpoint in ENDPOINTS if not any(one.required for one in endpoint.parameters)]
"""Endpoints that answer without being told anything; the others have tests of their own."""


@pytest.mark.parametrize("endpoint", OPEN, ids=lambda endpoint: endpoint.path)
def test_examples_and_answers_fit_their_model(endpoint: Endpoint, client: httpx.Client) -> None:
    """What is documented is what is sent: no field more, none less, none of another type."""
    endpoint.model.model_validate(endpoint.example)
    body = client.get(endpoint.path.format(gpu_uuid="GPU-c")).json()
    endpoint.model.model_validate(body, strict=True)
    if "items" in body:
        assert body["items"], "nothing was checked"
        assert set(body["items"][0]) == set(endpoint.example["items"][0])
