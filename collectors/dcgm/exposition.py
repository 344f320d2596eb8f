"""Prometheus text, as far as a page of gauges and counters needs it: series by their labels, and bad lines counted.

Written for pages whose labels stay from scrape to scrape: each set of labels is parsed once, then known by its text.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from telemetry.errors import BadInput

L = TypeVar("L")
MAX_LINES = 60_000
MAX_LINE = 16_384
MAX_LABELS = 100
MAX_KNOWN = 2_048  #: label sets that are remembered beyond those of the last page; pods come and go
MAX_SETS = 4_096  #: label sets of one page: a node of 16 GPUs, each in 7 instances, has a hundred or two

# Labels may come in any order and end with a comma; values may hold escaped quotes, and braces.
_PAIR = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n"}
_SERIES = re.compile(r'\s*([a-zA-Z_:][a-zA-Z0-9_:]*)\s*\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\}(.*)', re.DOTALL)
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|inf|nan)", re.ASCII | re.IGNORECASE)


@dataclass(slots=True)
class Series(Generic[L]):
    """The series of a page with one set of labels: their numbers by name; the time of the last, if it has one (ms)."""

    labels: L
    values: dict[str, float] = field(default_factory=dict)
    time_ms: int | None = None


@dataclass(slots=True)
class Page(Generic[L]):
    """A page: series by labels in their order, what was wrong by "line:reason", and the first bad line's number."""

    series: list[Series[L]]
    rejected: Counter[str]
    first_bad: int | None = None


class Parser(Generic[L]):
    """Reads the pages of one target: `names` are the series wanted, `reader` makes of labels what they say.

    `reader` gives None for labels that are of no interest; raises BadInput for those that are wrong.
    """

    def __init__(
        self,
        *,
        names: Collection[str],
        reader: Callable[[Mapping[str, str]], L | None],
        max_lines: int = MAX_LINES,
        max_sets: int = MAX_SETS,
    ) -> None:
        self._names = frozenset(names)
        self._reader = reader
        self._max_lines = max_lines
        self._max_sets = max_sets
        self._known: dict[str, L | None] = {}
        self._wrong: dict[str, str] = {}  # labels -> rule they break
        self._unwanted: set[str] = set()

    def parse(self, text: str) -> Page[L]:
        """The page's series.

        A line that cannot be read costs itself. Raises BadInput for a page with too many lines or sets of labels.
        """
        if text.count("\n") > self._max_lines:
            raise BadInput("too_many_lines", f"more than {self._max_lines} lines")
        page: Page[L] = Page([], Counter())
        open_series: dict[str, Series[L] | None] = {}
        wanted, unwanted, rejected = self._names, self._unwanted, page.rejected
        for number, line in enumerate(text.split("\n"), start=1):
            brace = line.find("{")
            name = line[:brace]
            if name not in wanted or brace < 0:
                if name not in unwanted and line[:1] not in ("", "#", "\r") and not self._passed_over(line, name):
                    self._slowly(line, page, open_series, number)
                continue
            end = line.rfind("}")
            labels = line[brace:end]
            try:
                series = open_series[labels]
            except KeyError:
                if len(line) > MAX_LINE or not self._open(labels, page, open_series):
                    self._slowly(line, page, open_series, number)
                    continue
                series = open_series[labels]
            if series is None:
                continue
            tail = line[end + 1 :]
            try:
                if "_" in tail:
                    raise ValueError  # 1_000 is a number to Python alone
                value = float(tail)
            except ValueError:
                self._add(series, name, tail, page, number)
                continue
            if name in series.values:
                rejected["line:duplicate"] += 1
            else:
                series.values[name] = value
        if len(self._known) > len(open_series) + MAX_KNOWN:
            self._known = {labels: self._known[labels] for labels in open_series}
            self._wrong = {labels: rule for labels, rule in self._wrong.items() if labels in open_series}
        page.series = [series for series in page.series if series.values]
        return page

    def _passed_over(self, line: str, name: str) -> bool:
        """Whether a line is plainly of no interest: a comment, or a series that is not wanted."""
        if _NAME.fullmatch(name) and "{" in line:
            if len(self._unwanted) < MAX_KNOWN:
                self._unwanted.add(name)
            return True
        text = line.lstrip()
        return not text or text[0] == "#" or re.split(r"[\s{]", text, maxsplit=1)[0] not in self._names

    def _open(self, labels: str, page: Page[L], open_series: dict[str, Series[L] | None]) -> bool:
        """Whether the text from the opening brace to before the last one is a well-formed set of labels."""
        if labels not in self._known:
            pairs = _pairs(labels[1:])
            if pairs is None:
                return False
            try:
                self._known[labels] = self._reader(pairs)
            except BadInput as error:
                self._known[labels] = None
                self._wrong[labels] = error.rule
        if labels in self._wrong:
            page.rejected[f"labels:{self._wrong[labels]}"] += 1
        found = self._known[labels]
        if len(open_series) >= self._max_sets:
            raise BadInput("too_many_labels", f"more than {self._max_sets} sets of labels")
        open_series[labels] = None if found is None else Series(found)
        if (series := open_series[labels]) is not None:
            page.series.append(series)
        return True

    def _slowly(self, line: str, page: Page[L], open_series: dict[str, Series[L] | None], number: int) -> None:
        """A line that is not written as exporters write them: read by the grammar, or counted."""
        match = None if len(line) > MAX_LINE else _SERIES.fullmatch(line)
        if match is None or match[1] not in self._names:
            self._bad(page, number, "too_long" if len(line) > MAX_LINE else "unreadable")
            return
        labels = "{" + match[2]
        if labels not in open_series and not self._open(labels, page, open_series):
            self._bad(page, number, "bad_labels")
            return
        series = open_series[labels]
        if series is not None:
            self._add(series, match[1], match[3], page, number)

    def _add(self, series: Series[L], name: str, tail: str, page: Page[L], number: int) -> None:
        """A value with what may stand behind it: a time in ms, an exemplar."""
        parts = tail.split("#", 1)[0].split()
        if not 1 <= len(parts) <= 2 or not _NUMBER.fullmatch(parts[0]):
            self._bad(page, number, "no_value" if not parts else "bad_value")
            return
        if len(parts) == 2:
            if not parts[1].lstrip("-").isdigit() or len(parts[1]) > 15:
                self._bad(page, number, "bad_time")
                return
            series.time_ms = int(parts[1])
        if name in series.values:
            page.rejected["line:duplicate"] += 1
        else:
            series.values[name] = float(parts[0])

    @staticmethod
    def _bad(page: Page[L], number: int, reason: str) -> None:
        page.rejected[f"line:{reason}"] += 1
        page.first_bad = page.first_bad or number


def _pairs(text: str) -> dict[str, str] | None:
    """The labels of `a="b",c="d",`; None if they are not well formed, or too many."""
    pairs: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = _PAIR.match(text, at)
        if match is None or len(pairs) == MAX_LABELS:
            return None if text[at:].strip() else pairs
        value = match[2]
        if "\\" in value:
            value = _ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[1]), value)
        pairs[match[1]] = value
        at = match.end()
    return pairs
