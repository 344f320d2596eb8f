"""`POST /v1/telemetry`: one message a request, checked, then acknowledged by the log before it is answered.

To accept another topic: `messages.TOPICS`.
"""

import hmac
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import Request, Response
from starlette.datastructures import Headers

from api.bodies import read_body
from api.messages import TELEMETRY, TOPICS, Checked, check
from api.metrics import Metrics
from api.refusal import Refused
from telemetry.codec import MAX_VALUE_BYTES
from telemetry.errors import BadInput, TransportError

Ingest = Callable[[str, bytes | None, Mapping[str, bytes], bytes], None]
"""Writes (topic, key, headers, value) to the log; returns once it is acknowledged; BadInput or TransportError."""

_PREFIX = "isotach-"
_RETRY_AFTER_S = 5
THREADS = 24  #: that wait for the log at once: a slow log makes posts queue, and never a reader


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """The way into the log: `ingest` (None: this replica takes no posts), the `token` that is asked for, if any."""

    ingest: Ingest | None
    token: str | None
    metrics: Metrics
    threads: CapacityLimiter

    def let_in(self, request: Request) -> None:
        """Raises Refused for a request that may not write here."""
        if self.token is not None and not _has(request.headers.get("authorization", ""), self.token):
            # Nothing more: who guesses learns nothing.
            raise Refused(401, "unauthorized", "a token is needed", headers={"www-authenticate": "Bearer"})
        if self.ingest is None:
            raise Refused(503, "no_telemetry_here", "this replica takes no posts")

    async def write(self, topic: str, key: bytes | None, headers: Mapping[str, bytes], body: bytes) -> int:
        """How many messages the body was, once the log has acknowledged them; BadInput or TransportError."""
        accepted = await run_sync(self._written, topic, key, headers, body, limiter=self.threads)
        self.metrics.accepted.labels(topic).inc(accepted)
        return accepted

    @contextmanager
    def refusals(self) -> Iterator[None]:
        """What stops a message on its way into the log, as the refusal that its sender is told; counted."""
        try:
            yield
        except BadInput as error:
            self.metrics.rejected.labels(error.rule).inc()
            status = 413 if error.rule == "too_large" else 400
            raise Refused(status, error.rule, error.detail) from None
        except TransportError as error:
            headers = {"retry-after": str(_RETRY_AFTER_S)}
            raise Refused(503, "log_unavailable", f"not stored: {error}", headers=headers) from None

    def _written(self, topic: str, key: bytes | None, headers: Mapping[str, bytes], body: bytes) -> int:
        """Everything is checked before anything is written."""
        assert self.ingest is not None  # noqa: S101 - for the type checker: nobody else is let in
        messages: list[Checked] = check(topic, key, headers, body)
        for message in messages:
            self.ingest(topic, message.key, message.headers, message.value)
        return len(messages)


async def take(request: Request, *, door: Door) -> Response:
    """202 with the number of messages written; raises Refused for everything else."""
    door.let_in(request)
    topic = request.headers.get("isotach-topic", TELEMETRY)
    with door.refusals():
        if topic not in TOPICS:
            raise BadInput("unknown_topic", f"topic {topic[:80]!r}; {', '.join(TOPICS)}")
        body = await read_body(request, most=MAX_VALUE_BYTES)
        key, headers = _message_headers(request.headers)
        accepted = await door.write(topic, key, headers, body)
    return Response(b'{"accepted":%d}' % accepted, status_code=202, media_type="application/json")


def _has(header: str, token: str) -> bool:
    scheme, _, given = header.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())


def _message_headers(headers: Headers) -> tuple[bytes | None, dict[str, bytes]]:
    """The key and the message headers: Isotach-Key, Isotach-<name> (percent-encoded), Content-Type."""
    found: dict[str, bytes] = {}
    for name, value in headers.items():
        if name.startswith(_PREFIX) and name not in ("isotach-topic", "isotach-key"):
            found[name.removeprefix(_PREFIX)] = unquote_to_bytes(value)
    if "content-type" in headers:
        found["content-type"] = headers["content-type"].encode("latin-1")
    key = headers.get("isotach-key")
    return (None if key is None else unquote_to_bytes(key)), found
