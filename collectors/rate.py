"""How much one collector may say: messages a second for a node, and how often the same event of a GPU.

To change how much of the same is told: `SAME_BURST` and `SAME_EVERY_S`.
"""

import re
from collections import defaultdict
from dataclasses import dataclass, field, replace

from telemetry.records import Event

BURST_S = 10.0  #: the rate holds over so long: a node that falls ill says much at once
SAME_BURST = 20  #: events of one kind, code and GPU that are told at once
SAME_EVERY_S = 30.0  #: and one in so long after that
QUIET_S = 60.0  #: what was not told is told as a number when no more came for so long
_STANDS_FOR = re.compile(r"\(and (\d+) more\)$")
MOST_KEYS = 4_096  #: nodes, and kinds of events, that are remembered


@dataclass(slots=True)
class _Bucket:
    """Tokens that refill at a rate, up to `size`; taken without asking they fall below 0, and are owed."""

    size: float
    tokens: float
    at: float

    def fill(self, rate: float, now: float) -> None:
        self.tokens = min(self.size, self.tokens + max(0.0, now - self.at) * rate)
        self.at = now


@dataclass(slots=True)
class _Same:
    """Events of one kind, code and GPU."""

    bucket: _Bucket
    untold: int = 0
    last: Event | None = None
    seen_at: float = field(default=0.0)


class Rates:
    """Which messages of a collector may go out now. Not for several threads at once.

    `per_s` messages a second for each node, as a mean over ten seconds; 0: no limit, nor one for equal events.
    Telemetry always goes, its rate is that of the samples; what it takes is taken from the others. Events that may not
    go are counted, and told as a number with the next one that may, or once they have ceased.
    """

    def __init__(self, *, per_s: float = 0.0) -> None:
        self.per_s = per_s
        self._nodes: dict[str, _Bucket] = {}
        self._same: dict[tuple[str, str, str, int], _Same] = {}
        self.held: defaultdict[str, int] = defaultdict(int)  #: events not told one by one so far, by kind

    def spend(self, node: str, *, now: float) -> None:
        """A message that goes whatever the rate."""
        if self.per_s > 0:
            self._bucket(node, now).tokens -= 1

    def may(self, node: str, *, now: float) -> bool:
        """Whether a message that can wait may go now; it is taken for sent if so."""
        if self.per_s <= 0:
            return True
        bucket = self._bucket(node, now)
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True

    def event(self, event: Event, *, now: float) -> Event | None:
        """The event as it may go out now, with the number of those before it that could not; None if it has to wait."""
        if self.per_s <= 0:
            return event
        key = (event.node, event.gpu_uuid, event.kind, event.code)
        same = self._same.get(key)
        if same is None:
            if len(self._same) >= MOST_KEYS:
                self._forget(now)
            same = self._same[key] = _Same(_Bucket(SAME_BURST, SAME_BURST, now))
        same.bucket.fill(1 / SAME_EVERY_S, now)
        same.seen_at = now
        if same.bucket.tokens < 1 or not self.may(event.node, now=now):
            same.untold += 1 + _more(event)
            same.last = event
            self.held[event.kind] += 1
            return None
        same.bucket.tokens -= 1
        told = _told(event, same.untold)
        same.untold, same.last = 0, None
        return told

    def ceased(self, *, now: float, at_once: bool = False) -> list[Event]:
        """The last event of each kind that was held back and has ceased, with the number of those before it."""
        found = []
        for same in self._same.values():
            if same.last is None or not (at_once or now - same.seen_at >= QUIET_S):
                continue
            if at_once or self.may(same.last.node, now=now):
                found.append(_told(same.last, same.untold - 1 - _more(same.last)))
                same.untold, same.last = 0, None
        return found

    def _bucket(self, node: str, now: float) -> _Bucket:
        size = max(1.0, self.per_s * BURST_S)
        bucket = self._nodes.get(node)
        if bucket is None:
            if len(self._nodes) >= MOST_KEYS * 16:
                self._nodes.clear()
            bucket = self._nodes[node] = _Bucket(size, size, now)
        bucket.size = size
        bucket.fill(self.per_s, now)
        bucket.tokens = max(bucket.tokens, -size)
        return bucket

    def _forget(self, now: float) -> None:
        """Kinds that have been quiet for long; if none has, the one that was quiet longest, with what it held."""
        quiet = [key for key, same in self._same.items() if same.last is None and now - same.seen_at > QUIET_S]
        for key in quiet or [min(self._same, key=lambda key: self._same[key].seen_at)]:
            del self._same[key]


def _more(event: Event) -> int:
    """How many others an event itself stands for, by its last words."""
    found = _STANDS_FOR.search(event.detail or "")
    return int(found[1]) if found else 0


def _told(event: Event, more: int) -> Event:
    if more <= 0:
        return event
    text = f"(and {more} more of them before)"
    return replace(event, detail=f"{event.detail} {text}" if event.detail else text)
