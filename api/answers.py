"""Answers as bytes: built once for each route, query and version of the store, then only sent.

To change what clients may keep: `_HEADERS`.
"""

import asyncio
import gzip
import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import orjson
from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool

MAX_BYTES = 128 << 20  #: kept in all, compressed copies included
MAX_ANSWERS = 4_096  #: kept in all
_WORTH_COMPRESSING = 1_024
_TAG = re.compile(r'(?:W/)?"([^"]*)"')

_HEADERS = {"cache-control": "no-cache", "vary": "accept-encoding"}
"""Clients and proxies may keep an answer, but ask each time whether it is still the one: a 304 costs little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A body to be kept: until `expires_ns`, or until one of the route's tables changes."""

    body: object
    expires_ns: int


@dataclass(slots=True, kw_only=True)
class Answer:
    """The bytes of one answer; the compressed copy is made when it is first asked for."""

    version: int
    expires_ns: int
    body: bytes
    tag: str
    zipped: bytes | None = field(default=None)
    used: bool = False

    @property
    def size(self) -> int:
        """Bytes held."""
        return len(self.body) + len(self.zipped or b"")


class Answers:
    """A bounded store of answers, least recently used out first. For one event loop; building runs in threads."""

    def __init__(self, *, clock_ns: Callable[[], int], max_bytes: int = MAX_BYTES) -> None:
        self._clock_ns = clock_ns
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: OrderedDict[tuple[str, bytes], Answer] = OrderedDict()
        self._pending: dict[tuple[str, bytes, int], asyncio.Task[Answer]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def wanted(self, limit: int = 16) -> list[tuple[str, bytes]]:
        """Keys that were asked for since they were built, the latest first."""
        return [key for key, answer in reversed(self._kept.items()) if answer.used][:limit]

    async def get(self, key: tuple[str, bytes], version: int, build: Callable[[], Built]) -> Answer:
        """The answer of this version; several that ask for it at once share one build."""
        found = self._kept.get(key)
        if found is not None and found.version == version and self._clock_ns() < found.expires_ns:
            self._kept.move_to_end(key)
            return found
        task = self._pending.get((*key, version))
        if task is None:
            task = asyncio.ensure_future(run_in_threadpool(_answer, version, build))
            self._pending[*key, version] = task
            task.add_done_callback(lambda _: self._pending.pop((*key, version), None))
        answer = await asyncio.shield(task)
        self._keep(key, answer)
        return answer

    async def respond(self, request: Request, answer: Answer, key: tuple[str, bytes]) -> Response:
        """200 with the body, compressed if the client takes that, or 304 if it has this very one."""
        answer.used = True
        zipped = len(answer.body) >= _WORTH_COMPRESSING and _takes_gzip(request.headers.get("accept-encoding", ""))
        headers = _HEADERS | {"etag": f'"{answer.tag}{"-gz" if zipped else ""}"'}
        asked = request.headers.get("if-none-match")
        if asked is not None and _matches(asked, answer.tag):
            return Response(status_code=304, headers=headers)
        if not zipped:
            return Response(answer.body, headers=headers, media_type="application/json")
        if answer.zipped is None:
            answer.zipped = await run_in_threadpool(gzip.compress, answer.body, 5, mtime=0)
            if self._kept.get(key) is answer:
                self._bytes += len(answer.zipped)
                self._trim()
        return Response(answer.zipped, headers=headers | {"content-encoding": "gzip"}, media_type="application/json")

    def _keep(self, key: tuple[str, bytes], answer: Answer) -> None:
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


def _answer(version: int, build: Callable[[], Built]) -> Answer:
    built = build()
    # orjson writes NaN and infinity as null: one odd number never costs a whole list.
    body = orjson.dumps(built.body, option=orjson.OPT_SERIALIZE_NUMPY)
    tag = hashlib.blake2b(body, digest_size=16).hexdigest()
    return Answer(version=version, expires_ns=built.expires_ns, body=body, tag=tag)


def _matches(header: str, tag: str) -> bool:
    """If-None-Match compares weakly: a proxy may have added W/, and either encoding is the same answer."""
    if header.strip() == "*":
        return True
    return any(found.removesuffix("-gz") == tag for found in _TAG.findall(header))


def _takes_gzip(header: str) -> bool:
    for part in header.lower().split(","):
        coding, _, quality = part.partition(";")
        if coding.strip() in ("gzip", "x-gzip", "*"):
            return quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
