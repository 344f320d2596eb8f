"""What a Prometheus has kept of dcgm-exporters: series of a span of time, asked for in pieces that it can answer.

To ask for other series: `MATCH`. Thanos, Mimir and VictoriaMetrics answer to the same paths.
"""

import http.client
import json
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

from collectors.dcgm.exposition import Series
from collectors.dcgm.fields import READ
from collectors.dcgm.labels import Labels, read_labels
from telemetry.errors import BadInput, IsotachError, SettingsError

MATCH = '{__name__=~"DCGM_FI_.+"}'
TIMEOUT_S = 120.0
MAX_ANSWER = 512 << 20
POINTS = 1_000_000  #: a piece is made as long as to hold so many: some hundred bytes each while it is read
MOST_STEPS = 5_000  #: Prometheus refuses more than 11,000 in one answer
FIRST_STEPS = 20
_TOO_MUCH = ("too many", "exceed", "timed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """All series of all nodes at one time (s, UTC)."""

    time_s: float
    series: Sequence[Series[Labels]]


class TooMuch(Exception):
    """The server cannot answer for so long a span at once."""


class Prometheus:
    """A Prometheus at `url`. Every method raises IsotachError that says what is wrong, and never shows the token."""

    def __init__(self, url: str, *, token: str | None = None, context: ssl.SSLContext | None = None) -> None:
        parts = urlsplit(url)
        if parts.username is not None:
            raise SettingsError("no user in the URL: put a token into a file and give --token-file")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise SettingsError(
                f"{url}: expected http://HOST:PORT or https://HOST:PORT, with a path before /api if any"
            )
        self._parts = parts
        self._url = url.rstrip("/")
        self._token = token
        self._context = context
        self._known: dict[str, tuple[str, Labels | None]] = {}

    def names(self, start_s: float, end_s: float) -> list[str]:
        """The fields that are read, of those that there are in this span."""
        found = self._ask("label/__name__/values", {"match[]": MATCH, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}"})
        return sorted(READ.intersection(str(name) for name in found if isinstance(name, str)))

    def moments(
        self, start_s: float, end_s: float, step_s: float, *, reject: Callable[[str], None]
    ) -> Iterator[Moment]:
        """Every moment from start to end, step by step, those without series left out.

        `reject` is told the rule of each series that names no GPU, and of each value that is no number.
        """
        names = self.names(start_s, end_s)
        if not names:
            raise IsotachError(
                f"{self._url} has no series of dcgm-exporter between these times: it should find {MATCH}"
            )
        at, steps = start_s, FIRST_STEPS
        while at <= end_s:
            last = min(end_s, at + (steps - 1) * step_s)
            try:
                table, points = self._piece(names, at, last, step_s, reject)
            except TooMuch as error:
                if steps == 1:
                    raise IsotachError(f"{self._url} cannot answer for one moment: {error}") from None
                steps = max(1, steps // 2)
                continue
            for time_s in sorted(table):
                yield Moment(time_s=time_s, series=list(table[time_s].values()))
            at = last + step_s
            steps = max(1, min(MOST_STEPS, 4 * steps, int(steps * POINTS / max(1, points))))

    def _piece(
        self, names: Sequence[str], start_s: float, end_s: float, step_s: float, reject: Callable[[str], None]
    ) -> tuple[dict[float, dict[str, Series[Labels]]], int]:
        table: dict[float, dict[str, Series[Labels]]] = {}
        points = 0
        for name in names:
            asked = {"query": name, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:g}"}
            found = self._ask("query_range", asked)
            result = found.get("result") if isinstance(found, Mapping) else None
            if not isinstance(result, list):
                raise IsotachError(f"{self._url}: the answer is none of Prometheus: it has no result")
            for series in result:
                key, labels = self._labels(series.get("metric") if isinstance(series, Mapping) else None, reject)
                if labels is None:
                    continue
                values = series.get("values") or ()
                points += len(values)
                for pair in values:
                    try:
                        time_s, value = float(pair[0]), float(pair[1])
                    except (TypeError, ValueError, IndexError):
                        reject("not_a_number")
                        continue
                    at = table.setdefault(time_s, {})
                    one = at.get(key)
                    if one is None:
                        one = at[key] = Series(labels)
                    one.values.setdefault(name, value)
        return table, points

    def _labels(self, metric: object, reject: Callable[[str], None]) -> tuple[str, Labels | None]:
        pairs = {str(k): str(v) for k, v in metric.items() if k != "__name__"} if isinstance(metric, Mapping) else {}
        text = json.dumps(pairs, sort_keys=True)
        if text not in self._known:
            try:
                labels = read_labels(pairs)
            except BadInput as error:
                reject(error.rule)
                labels = None
            self._known[text] = (text, labels)  # one text for all uses of it
        return self._known[text]

    def _ask(self, path: str, asked: Mapping[str, str]) -> Any:
        status, body = self._post(f"{self._parts.path.rstrip('/')}/api/v1/{path}", asked)
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        words = str(answer.get("error", ""))[:300] if isinstance(answer, Mapping) else ""
        if status in (401, 403):
            raise IsotachError(f"{self._url} asks for a token, or for another one: --token-file")
        if status == 422 or (
            status in (400, 500, 503, 504) and any(w in words for w in ("too many", "exceed", "timed"))
        ):
            raise TooMuch(words or f"status {status}")
        if status != 200 or not isinstance(answer, Mapping) or answer.get("status") != "success":
            raise IsotachError(f"{self._url} is no Prometheus, or refuses: status {status} {words}".rstrip())
        return answer.get("data")

    def _post(self, path: str, asked: Mapping[str, str]) -> tuple[int, bytes]:
        host, port = self._parts.hostname or "", self._parts.port
        connection = (
            http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=self._context)
            if self._parts.scheme == "https"
            else http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
        )
        headers = {"Accept": "application/json", **({"Authorization": f"Bearer {self._token}"} if self._token else {})}
        try:
            connection.request("GET", f"{path}?{urlencode(asked)}", headers=headers)
            response = connection.getresponse()
            body = response.read(MAX_ANSWER + 1)
        except (OSError, http.client.HTTPException) as error:
            raise IsotachError(f"{self._url} cannot be reached: {error or type(error).__name__}") from None
        finally:
            connection.close()
        if len(body) > MAX_ANSWER:
            raise TooMuch(f"more than {MAX_ANSWER >> 20} MiB")
        return response.status, body
