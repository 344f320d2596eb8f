"""`/metrics`: what this process says of itself, in a registry of its own.

To add a metric: a field of `Metrics`, its line in docs/api.md.
"""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from analytics.store import Store
from api.answers import ROUTE
from telemetry.tables import TABLES

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counters of requests and posts, and the state of the store at the moment of the scrape."""

    def __init__(self, store: Store, *, clock_ns: Callable[[], int]) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.requests = Counter(
            "isotach_http_requests", "Requests answered.", ["route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "isotach_http_request_seconds",
            "Time to the end of an answer.",
            ["route"],
            registry=self.registry,
            buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10),
        )
        self.accepted = Counter(
            "isotach_posts_accepted", "Posted messages written to the log.", ["topic"], registry=self.registry
        )
        self.rejected = Counter(
            "isotach_posts_rejected", "Posts that a rule refused.", ["rule"], registry=self.registry
        )
        self.registry.register(_State(store, clock_ns))

    def text(self) -> bytes:
        """The exposition format; raises StoreError."""
        return generate_latest(self.registry)


class _State(Collector):
    """Store gauges, read when scraped."""

    def __init__(self, store: Store, clock_ns: Callable[[], int]) -> None:
        self._store = store
        self._clock_ns = clock_ns

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return ()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        yield GaugeMetricFamily("isotach_store_version", "Writes of this process.", value=self._store.version)
        rows = GaugeMetricFamily("isotach_store_rows", "Rows of each table, as DuckDB estimates.", labels=["table"])
        sizes = self._store.frame("SELECT table_name, estimated_size FROM duckdb_tables() WHERE NOT internal")
        for name, size in sizes.iter_rows():
            if name in TABLES:
                rows.add_metric([name], size)
        yield rows
        newest = self._store.frame("SELECT max(as_of_ns) FROM scores").item()
        age = GaugeMetricFamily(
            "isotach_as_of_age_seconds", "Age of the newest evidence in the scores; absent without any.", labels=[]
        )
        if newest is not None:
            age.add_metric([], (self._clock_ns() - newest) / 1e9)
        yield age


class Counted:
    """Middleware: counts every answer by the route's template, never by the path that was asked for."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, monotonic: Callable[[], float]) -> None:
        self._app = app
        self._metrics = metrics
        self._monotonic = monotonic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500
        begun = self._monotonic()

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watch)
        finally:
            route = scope.get(ROUTE) or getattr(scope.get("route"), "path", "unknown")
            self._metrics.requests.labels(route, str(status)).inc()
            self._metrics.seconds.labels(route).observe(self._monotonic() - begun)
