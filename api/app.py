"""The application: which endpoints there are, and how errors, warm answers and metrics hang together.

To add an endpoint: a module of its noun with `ENDPOINTS`, and that module in `_NOUNS`.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata

import polars as pl
from anyio import CapacityLimiter
from fastapi import FastAPI, Request, Response
from prometheus_client.registry import Collector
from starlette.exceptions import HTTPException

from analytics.store import Store
from api import blocks, gpus, jobs, models, nodes, placements, tiers, transitions, variance, verdicts
from api.answers import Answers, Built, Shortcut
from api.endpoint import Endpoint, Site, Values
from api.fleet import Fleets
from api.ingest import THREADS, Door, Ingest, take
from api.metrics import Counted, Metrics
from api.page import add_page
from api.parameters import parse
from api.refusal import Refused, answer
from api.routes import add_get, add_post, add_probes, add_question
from api.warm import kept_warm
from telemetry.errors import StoreError

_NOUNS = (gpus, nodes, blocks, placements, tiers, transitions, jobs, variance)
ENDPOINTS: tuple[Endpoint, ...] = tuple(endpoint for noun in _NOUNS for endpoint in noun.ENDPOINTS)
"""Every GET route under /v1."""


def create_app(
    store: Store,
    *,
    ingest: Ingest | None = None,
    ready: Callable[[], Sequence[str]] = tuple,
    token: str | None = None,
    topology: pl.DataFrame | None = None,
    clock_ns: Callable[[], int] = time.time_ns,
    stale_after_s: float = 300.0,
    counters: Sequence[Collector] = (),
) -> FastAPI:
    """The HTTP API over a store.

    `ingest` writes a posted message to the log; without it posts are answered 503. `ready` names what the process
    still waits for. `token` is asked of posts. `topology` is the operator's, and comes before what the nodes say.
    Scores older than `stale_after_s` are served as `unknown`. `counters` are more to show under /metrics.
    """
    metrics = Metrics(store, clock_ns=clock_ns)
    for more in counters:
        metrics.registry.register(more)
    fleets = Fleets(store, topology=topology, clock_ns=clock_ns, stale_after_ns=int(stale_after_s * 1e9))
    site = Site(store=store, fleets=fleets)
    answers = Answers(clock_ns=clock_ns, version_of=store.version_of)
    app = FastAPI(
        title="Isotach",
        version=_version(),
        summary="Ranked GPUs, nodes and blocks, and health tiers, for any scheduler.",
        docs_url=None,
        redoc_url=None,
        lifespan=lambda _: kept_warm(site, answers, ENDPOINTS),
        responses={422: {"model": models.Error, "description": "A parameter is unknown or has a bad value."}},
    )
    app.add_middleware(Shortcut, answers=answers)
    app.add_middleware(Counted, metrics=metrics, monotonic=time.perf_counter)
    for endpoint in ENDPOINTS:
        add_get(app, endpoint, partial(_get, site=site, answers=answers, endpoint=endpoint))
    add_question(app, placements.QUESTION, partial(placements.answer_placements, site=site))
    door = Door(ingest=ingest, token=token, metrics=metrics, threads=CapacityLimiter(THREADS))
    add_question(app, verdicts.QUESTION, partial(verdicts.answer_verdict, site=site, door=door, clock_ns=clock_ns))
    add_post(app, partial(take, door=door))
    add_probes(app, ready, metrics)
    add_page(app)
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(HTTPException, _unrouted)
    app.add_exception_handler(StoreError, _no_store)
    app.add_exception_handler(Exception, _failed)
    return app


async def _get(request: Request, *, site: Site, answers: Answers, endpoint: Endpoint) -> Response:
    key = (request.scope["path"], request.scope["query_string"])

    def build() -> Built:
        return endpoint.build(site, _values(endpoint, key[1], request.path_params))

    kept = await answers.get(key, endpoint.path, endpoint.tables, build)
    headers = dict(request.scope["headers"])
    reply = answers.reply(kept, headers)
    if reply is None:
        await answers.compress(key, kept)
        reply = answers.reply(kept, headers)
    assert reply is not None  # noqa: S101 - for the type checker: the copy is made now
    response = Response(reply.body, status_code=reply.status)
    response.raw_headers = reply.headers
    return response


def _values(endpoint: Endpoint, query: bytes, path: Values) -> Values:
    return {**parse(query, endpoint.parameters), **path}


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)  # noqa: S101 - for the type checker
    return answer(error)


async def _unrouted(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - for the type checker
    rules = {404: "not_found", 405: "method_not_allowed"}
    detail = f"{request.method} {request.url.path[:200]}: {error.detail}"
    return answer(
        Refused(error.status_code, rules.get(error.status_code, "bad_request"), detail, headers=error.headers)
    )


async def _no_store(_: Request, error: Exception) -> Response:
    return answer(Refused(503, "store_unavailable", f"the store cannot be read now ({type(error).__name__})"))


async def _failed(_: Request, error: Exception) -> Response:
    return answer(Refused(500, "internal", f"this server failed to answer ({type(error).__name__})"))


def _version() -> str:
    try:
        return metadata.version("isotach")
    except metadata.PackageNotFoundError:
        return "0"
