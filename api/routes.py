"""Routes with their documentation: what the OpenAPI document says of each, and the function behind it.

To change how an endpoint is documented: its `Endpoint`; here is only what all have in common.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool

from api import models
from api.answers import ROUTE
from api.endpoint import Endpoint, Question
from api.messages import TOPICS
from api.metrics import CONTENT_TYPE, Metrics
from api.parameters import parse
from telemetry.codec import ARROW, JSON, MAX_VALUE_BYTES

Handler = Callable[[Request], Awaitable[Response]]


def add_get(app: FastAPI, endpoint: Endpoint, handler: Handler) -> None:
    """A GET route with its HEAD twin, documented from the endpoint."""

    async def get(request: Request) -> Response:
        request.scope[ROUTE] = endpoint.path
        return await handler(request)

    documented: dict[int | str, dict[str, Any]] = {
        200: {"model": endpoint.model, "content": {JSON: {"example": endpoint.example}}},
        304: {"description": "The answer that If-None-Match names is still the one."},
        503: {"model": models.Error, "description": "The store cannot be read now."},
    }
    names = [part[1:-1] for part in endpoint.path.split("/") if part.startswith("{")]
    if names:
        documented[404] = {"model": models.Error, "description": "Nothing of that name is known."}
    # Names may hold slashes: a GPU known by its index is `node/3`.
    path = endpoint.path.replace("}", ":path}")
    in_path = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    app.add_api_route(
        path,
        get,
        methods=["GET"],
        summary=endpoint.summary,
        description=endpoint.help,
        responses=documented,
        response_model=None,
        openapi_extra={"parameters": [*in_path, *(one.openapi() for one in endpoint.parameters)]},
        operation_id=endpoint.path.strip("/").replace("/", "_").replace("{", "").replace("}", ""),
    )
    app.add_api_route(path, get, methods=["HEAD"], include_in_schema=False, response_model=None)


def add_post(app: FastAPI, handler: Handler) -> None:
    """`POST /v1/telemetry`."""

    async def post(request: Request) -> Response:
        parse(request.scope["query_string"], ())
        return await handler(request)

    def header(name: str, text: str, **schema: Any) -> dict[str, Any]:
        return {"name": name, "in": "header", "description": text, "schema": {"type": "string"} | schema}

    example = {
        "node": "n017",
        "interval_s": 1.0,
        "samples": [
            {
                "gpu_uuid": "GPU-6f1c0b6e-0b52-4f0e-9f39-3f6f4d6d5a01",
                "time_ns": 1_767_225_600_000_000_000,
                "sm_clock_mhz": 1980,
                "power_w": 512.5,
            }
        ],
    }
    errors = {400: "The message breaks a rule.", 401: "The token is missing or wrong.", 413: "More than 1 MiB."}
    errors[503] = "The log cannot take it now, or this replica takes no telemetry; nothing was counted."
    app.add_api_route(
        "/v1/telemetry",
        post,
        methods=["POST"],
        status_code=202,
        summary="Send samples, events, inventory, measurements or jobs",
        description=(
            "One message a request; events, inventory, measurements and jobs also as a list of objects. Answered once "
            "the log has acknowledged it. Sending the same again is harmless."
        ),
        responses={
            202: {"model": models.Accepted, "content": {JSON: {"example": {"accepted": 1}}}},
            **{status: {"model": models.Error, "description": text} for status, text in errors.items()},
        },
        response_model=None,
        operation_id="v1_telemetry",
        openapi_extra={
            "parameters": [
                header("Isotach-Topic", "Which topic.", enum=list(TOPICS), default=next(iter(TOPICS))),
                header("Isotach-Key", "The message's key, percent-encoded; made of the message if absent."),
                header("Isotach-schema", "Schema header of an Arrow message; every Isotach-<name> becomes a header."),
            ],
            "requestBody": {
                "required": True,
                "content": {
                    JSON: {"schema": {"type": "object"}, "example": example},
                    ARROW: {"schema": {"type": "string", "format": "binary", "maxLength": MAX_VALUE_BYTES}},
                },
            },
        },
    )


def add_question(app: FastAPI, question: Question, handler: Handler) -> None:
    """A POST route with a JSON body, documented from the question."""

    async def post(request: Request) -> Response:
        parse(request.scope["query_string"], ())
        return await handler(request)

    content = {JSON: {"schema": question.request.model_json_schema(), "example": question.asked}}
    app.add_api_route(
        question.path,
        post,
        methods=["POST"],
        status_code=question.status,
        summary=question.summary,
        description=question.help,
        responses={
            question.status: {"model": question.model, "content": {JSON: {"example": question.example}}},
            **{status: {"model": models.Error, "description": text} for status, text in question.errors.items()},
        },
        response_model=None,
        operation_id=question.path.strip("/").replace("/", "_"),
        openapi_extra={"requestBody": {"required": True, "content": content}},
    )


def add_probes(app: FastAPI, ready: Callable[[], Sequence[str]], metrics: Metrics) -> None:
    """`/healthz`, `/readyz` and `/metrics`."""

    async def healthz() -> Response:
        return _plain(200, {"status": "alive"})

    async def readyz() -> Response:
        waiting = list(await run_in_threadpool(ready))
        body = {"status": "waiting" if waiting else "ready", "waiting_for": waiting}
        return _plain(503 if waiting else 200, body)

    async def scrape() -> Response:
        text = await run_in_threadpool(metrics.text)
        return Response(text, headers={"content-type": CONTENT_TYPE, "cache-control": "no-store"})

    def documented(model: Any, example: Any) -> dict[str, Any]:
        return {"model": model, "content": {JSON: {"example": example}}}

    add = partial(app.add_api_route, methods=["GET"], response_model=None)
    add(
        "/healthz",
        healthz,
        summary="Whether the process runs",
        responses={200: documented(models.Alive, {"status": "alive"})},
    )
    add(
        "/readyz",
        readyz,
        summary="Whether it can be asked",
        responses={
            200: documented(models.Ready, {"status": "ready", "waiting_for": []}),
            503: documented(models.Ready, {"status": "waiting", "waiting_for": ["the store is catching up"]}),
        },
    )
    sample = 'isotach_http_requests_total{route="/v1/gpus",status="200"} 5.0'
    add(
        "/metrics",
        scrape,
        summary="Prometheus metrics of this process",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}, "example": sample}}}},
    )


def _plain(status: int, body: object) -> Response:
    headers = {"cache-control": "no-store"}
    return Response(orjson.dumps(body), status_code=status, headers=headers, media_type=JSON)
