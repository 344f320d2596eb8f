"""Answers as bytes: built once for each route, query and version of the store, then only sent.

To change what clients may keep: `_HEADERS`.
"""

import asyncio
import gzip
import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import orjson
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

MAX_BYTES = 128 << 20  #: kept in all, compressed copies included
MAX_ANSWERS = 4_096  #: kept in all
ROUTE = "isotach_route"  #: where in the scope the route's template is, as the documentation writes it
_TRIES = 3  #: builds that may be overtaken by the clock one after the other
_WORTH_COMPRESSING = 1_024
_TAG = re.compile(rb'(?:W/)?"([^"]*)"')

_HEADERS = [(b"cache-control", b"no-cache"), (b"vary", b"accept-encoding")]
"""Clients and proxies may keep an answer, but ask each time whether it is still the one: a 304 costs little."""

Key = tuple[str, bytes]
"""Path and query of a request, as they came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A body to be kept: until `expires_ns`, or until one of the route's tables changes."""

    body: object
    expires_ns: int


@dataclass(slots=True, kw_only=True)
class Answer:
    """The bytes of one answer; the compressed copy is made when it is first asked for."""

    route: str
    tables: Sequence[str]
    version: int
    expires_ns: int
    body: bytes
    tag: bytes
    zipped: bytes | None = None
    used: bool = False

    @property
    def size(self) -> int:
        """Bytes held."""
        return len(self.body) + len(self.zipped or b"")


class Reply(NamedTuple):
    """What goes over the wire."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class Answers:
    """A bounded store of answers, least recently used out first. For one event loop; building runs in threads.

    `version_of` says at which version some tables last changed.
    """

    def __init__(
        self, *, clock_ns: Callable[[], int], version_of: Callable[..., int], max_bytes: int = MAX_BYTES
    ) -> None:
        self._clock_ns = clock_ns
        self._version_of = version_of
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: OrderedDict[Key, Answer] = OrderedDict()
        self._pending: dict[tuple[Key, int], asyncio.Task[Answer]] = {}

    def wanted(self, limit: int = 16) -> list[Key]:
        """Keys that were asked for since they were built, the latest first."""
        return [key for key, answer in reversed(self._kept.items()) if answer.used][:limit]

    def fresh(self, key: Key) -> Answer | None:
        """The kept answer, if nothing that it was made of has changed or grown too old."""
        found = self._kept.get(key)
        if found is None or found.version != self._version_of(*found.tables) or self._clock_ns() >= found.expires_ns:
            return None
        self._kept.move_to_end(key)
        return found

    async def get(self, key: Key, route: str, tables: Sequence[str], build: Callable[[], Built]) -> Answer:
        """The answer of this moment; several that ask for it at once share one build."""
        for _ in range(_TRIES):
            found = self.fresh(key)
            if found is not None:
                return found
            answer = await self._built(key, route, tables, build)
            # A build that began earlier may be of a time when scores were valid that no longer are.
            if self._clock_ns() < answer.expires_ns:
                break
        return answer

    async def _built(self, key: Key, route: str, tables: Sequence[str], build: Callable[[], Built]) -> Answer:
        version = self._version_of(*tables)
        task = self._pending.get((key, version))
        if task is None:
            task = asyncio.ensure_future(run_in_threadpool(_answer, route, tables, version, build))
            self._pending[key, version] = task
            task.add_done_callback(lambda _: self._pending.pop((key, version), None))
        answer = await asyncio.shield(task)
        self._keep(key, answer)
        return answer

    def reply(self, answer: Answer, headers: Mapping[bytes, bytes]) -> Reply | None:
        """200 with the body, or 304 if the client has this very one; None while the compressed copy is not made."""
        answer.used = True
        zipped = len(answer.body) >= _WORTH_COMPRESSING and _takes_gzip(headers.get(b"accept-encoding", b""))
        out = [*_HEADERS, (b"etag", b'"%b%b"' % (answer.tag, b"-gz" if zipped else b""))]
        asked = headers.get(b"if-none-match")
        if asked is not None and _matches(asked, answer.tag):
            return Reply(304, out, b"")
        if zipped:
            if answer.zipped is None:
                return None
            out.append((b"content-encoding", b"gzip"))
        body = answer.zipped if zipped and answer.zipped is not None else answer.body
        out += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        return Reply(200, out, body)

    async def compress(self, key: Key, answer: Answer) -> None:
        """Make the compressed copy."""
        zipped = await run_in_threadpool(gzip.compress, answer.body, 5, mtime=0)
        if answer.zipped is None:
            answer.zipped = zipped
            if self._kept.get(key) is answer:
                self._bytes += len(zipped)
                self._trim()

    def _keep(self, key: Key, answer: Answer) -> None:
        before = self._kept.pop(key, None)
        if before is not None:
            self._bytes -= before.size
        if answer.size > self._max_bytes // 2:
            return
        self._kept[key] = answer
        self._bytes += answer.size
        self._trim()

    def _trim(self) -> None:
        while self._bytes > self._max_bytes or len(self._kept) > MAX_ANSWERS:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= oldest.size


class Shortcut:
    """Middleware: a kept answer goes out before any router looks at the request, at a third of the cost."""

    def __init__(self, app: ASGIApp, *, answers: Answers) -> None:
        self._app = app
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] in ("GET", "HEAD"):
            answer = self._answers.fresh((scope["path"], scope["query_string"]))
            reply = None if answer is None else self._answers.reply(answer, dict(scope["headers"]))
            if answer is not None and reply is not None:
                scope[ROUTE] = answer.route
                await send({"type": "http.response.start", "status": reply.status, "headers": reply.headers})
                await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else reply.body})
                return
        await self._app(scope, receive, send)


def _answer(route: str, tables: Sequence[str], version: int, build: Callable[[], Built]) -> Answer:
    built = build()
    # orjson writes NaN and infinity as null: one odd number never costs a whole list.
    body = orjson.dumps(built.body)
    tag = hashlib.blake2b(body, digest_size=16).hexdigest().encode()
    return Answer(route=route, tables=tables, version=version, expires_ns=built.expires_ns, body=body, tag=tag)


def _matches(header: bytes, tag: bytes) -> bool:
    """If-None-Match compares weakly: a proxy may have added W/, and either encoding is the same answer."""
    return header.strip() == b"*" or any(found.removesuffix(b"-gz") == tag for found in _TAG.findall(header))


def _takes_gzip(header: bytes) -> bool:
    for part in header.lower().split(b","):
        coding, _, quality = part.partition(b";")
        if coding.strip() in (b"gzip", b"x-gzip", b"*"):
            return quality.replace(b" ", b"") not in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000")
    return False
