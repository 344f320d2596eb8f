"""A producer for agents that reach no Kafka: each message is one POST to a server's `/v1/telemetry`.

To treat an answer differently: `_judge`. Standard library only: a GPU node stays light.
"""

import http.client
import json
import logging
import random
import re
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from streams import Outgoing
from streams.topics import TELEMETRY
from telemetry.errors import SettingsError, TransportError

_log = logging.getLogger("isotach.http")
PATH = "/v1/telemetry"
_SAFE = "-._~,;:/=+"  # what a header value may hold unencoded: lists and schemas stay readable
_BACK_OFF_S = (0.25, 4.0)
_AGAIN = frozenset({408, 425, 429, *range(500, 600)})
_NEVER = frozenset({400, 413, 415, 422})
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_RESERVED = frozenset({"topic", "key"})
_LONGEST_ANSWER = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    status: int
    body: bytes
    retry_after: str | None


class HttpProducer:
    """Posts each message before `send` returns: order is kept, and what was sent is stored on the other side.

    There is no queue: the caller keeps what it could not send. A message that the server refuses for what it is
    (400, 413, 422) is counted in `refused` by the server's rule, told in the log, and not sent again. Safe for several
    threads, which take turns.
    """

    def __init__(
        self,
        *,
        server: str,
        token: str | None = None,
        timeout_s: float = 10.0,
        patience_s: float = 15.0,
        context: ssl.SSLContext | None = None,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
        jitter: random.Random | None = None,
    ) -> None:
        parts = urlsplit(server if "://" in server else f"http://{server}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or parts.username is not None:
            raise SettingsError(f"server {_shown(server)}: expected http://host:port or https://host:port")
        if token is not None and not (token.isascii() and token.isprintable() and token.strip() == token):
            raise SettingsError("token: it must be printable ASCII without spaces around it")
        self._server = f"{parts.scheme}://{parts.netloc}"
        self._path = parts.path.rstrip("/") + PATH
        self._token = token
        self._patience_s = patience_s
        self._sleep = sleep
        self._monotonic = monotonic
        self._jitter = jitter or random.Random()  # noqa: S311 - spreads load, guards nothing
        self._lock = threading.Lock()
        self._refused: Counter[str] = Counter()
        self._connection = (
            http.client.HTTPSConnection(parts.hostname, port, timeout=timeout_s, context=context)
            if parts.scheme == "https"
            else http.client.HTTPConnection(parts.hostname, port, timeout=timeout_s)
        )

    def __repr__(self) -> str:
        return f"HttpProducer(server={self._server!r})"

    @property
    def refused(self) -> Mapping[str, int]:
        """Messages that the server refused for what they are, by its rule."""
        return dict(self._refused)

    def send(self, message: Outgoing) -> None:
        """Post a message and wait until the server has stored it, through short trouble too.

        Raises TransportError if the server is away or busy for longer than `patience_s`, does not know the token, or is
        no Isotach server: then the message was not stored, or may have been, and is the caller's to send again.
        """
        headers = self._headers(message)
        with self._lock:
            deadline = self._monotonic() + self._patience_s
            pause_s = _BACK_OFF_S[0]
            while True:
                try:
                    answer = self._post(message.value or b"", headers)
                except (OSError, http.client.HTTPException) as error:
                    self._connection.close()
                    trouble, wait_s = f"cannot be reached: {error or type(error).__name__}", pause_s
                except ValueError as error:  # a content type that no header can hold
                    self._connection.close()
                    raise TransportError(f"{message.topic}: message cannot be sent over HTTP: {error}") from None
                else:
                    if self._judge(answer, message):
                        return
                    trouble = f"answers {answer.status}: {_rule(answer)[1]}"
                    wait_s = max(pause_s, _seconds(answer.retry_after))
                wait_s *= self._jitter.uniform(1.0, 1.5)  # agents that lost a server together come back apart
                if self._monotonic() + wait_s > deadline:
                    raise TransportError(f"{self._server} {trouble}")
                self._sleep(wait_s)
                pause_s = min(2 * pause_s, _BACK_OFF_S[1])

    def _headers(self, message: Outgoing) -> dict[str, str]:
        if message.value is None:
            raise TransportError(f"{message.topic}: a deletion cannot be sent over HTTP")
        bad = [name for name in message.headers if name.lower() in _RESERVED or not _NAME.fullmatch(name)]
        if bad:
            raise TransportError(f"{message.topic}: message headers named {bad} cannot be sent over HTTP")
        headers = {
            f"Isotach-{name}": quote(value, safe=_SAFE)
            for name, value in message.headers.items()
            if name != "content-type"
        }
        headers["Content-Type"] = message.headers.get("content-type", b"application/json").decode("latin-1")
        if message.topic != TELEMETRY:
            headers["Isotach-Topic"] = message.topic
        if message.key is not None:
            headers["Isotach-Key"] = quote(message.key, safe=_SAFE)
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers

    def _post(self, body: bytes, headers: Mapping[str, str]) -> _Answer:
        """One request; once more on a new connection if the server had closed the old one meanwhile."""
        kept_open = self._connection.sock is not None
        try:
            return self._exchange(body, headers)
        except (ConnectionError, http.client.BadStatusLine):
            self._connection.close()
            if not kept_open:
                raise
        return self._exchange(body, headers)

    def _exchange(self, body: bytes, headers: Mapping[str, str]) -> _Answer:
        self._connection.request("POST", self._path, body=body, headers=dict(headers))
        with self._connection.getresponse() as response:
            text = response.read(_LONGEST_ANSWER + 1)
            answer = _Answer(status=response.status, body=text, retry_after=response.getheader("Retry-After"))
        if len(text) > _LONGEST_ANSWER:
            self._connection.close()  # the rest of this answer is nobody's
        return answer

    def _judge(self, answer: _Answer, message: Outgoing) -> bool:
        """True if the message is done with, False if it is worth another try; raises TransportError otherwise."""
        if 200 <= answer.status < 300:
            return True
        rule, detail = _rule(answer)
        if answer.status in _NEVER:
            self._refused[rule] += 1
            _log.error("%s refuses a message for %s: %s: %s", self._server, message.topic, rule, detail)
            return True
        if answer.status in (401, 403):
            given = (
                "the setting token (or token_file) is not the server's" if self._token else "set token or token_file"
            )
            raise TransportError(f"{self._server} answers {answer.status}: {given}")
        if answer.status in _AGAIN:
            return False
        raise TransportError(f"{self._server}{self._path} answers {answer.status}: is the setting server right?")

    def flush(self, *, timeout_s: float = 60.0) -> None:
        """Nothing to do: what `send` has returned from is stored."""

    def close(self, *, timeout_s: float = 60.0) -> None:
        """Close the connection."""
        with self._lock:
            self._connection.close()


def _rule(answer: _Answer) -> tuple[str, str]:
    """The rule and the detail that the server names, or what can be said without."""
    plain = (f"http_{answer.status}", answer.body[:200].decode("utf-8", "replace"))
    try:
        error = json.loads(answer.body)["error"]
        return str(error["rule"]), str(error.get("detail", ""))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return plain


def _seconds(retry_after: str | None) -> float:
    return float(retry_after) if retry_after and retry_after.isdigit() else 0.0


def _shown(server: str) -> str:
    """The address without what may be a password in it."""
    return repr(server.rpartition("@")[2])
