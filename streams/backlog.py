"""After a gap in the log: the watermark waits for the nodes that were there before it, so that their backlog counts.

To change for how long: `SILENT` and `LONGEST`, in times of the lateness.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

SILENT = 1  #: a node that says nothing for so long after the gap is not waited for: agents try again every 10 s
LONGEST = 3  #: and nobody for longer than this: fresh windows matter more than old ones


class Heard(NamedTuple):
    """One message with rows that were accepted; times in ns."""

    offset: int
    newest: int  #: its newest row
    watermark: int  #: before it
    taken: int  #: when the log took it in
    node: str
    latest: int | None  #: the latest time at which the log took in a message before it


class Kept(NamedTuple):
    """Where a restart has to begin to wait again as it was waited, and the last message that depends on it."""

    first: Heard
    until: int


@dataclass(slots=True)
class Backlog:
    """The nodes that are waited for. All is decided by messages and by when the log took them in, never by a clock.

    Without this the first node back would move the watermark past the samples that the others kept while they could
    not send. A node is waited for if it was heard within the lateness before the gap with samples no older than the
    lateness, until it is that fresh again.
    """

    lateness_ns: int
    resumed: int
    began: int
    first: Heard  #: the first message that tells who was there
    potential: int  #: where the watermark would be without waiting
    newest: dict[str, int] = field(default_factory=dict)  #: of the nodes waited for
    heard: dict[str, int] = field(default_factory=dict)
    _order: list[tuple[int, str]] = field(default_factory=list)  #: heap of `newest`, with entries that hold no more

    @classmethod
    def after(
        cls,
        gap_from: int,
        resumed: int,
        log: Iterable[Heard],
        *,
        lateness_ns: int,
        watermark: int,
        needed_from: int,
        before: "Backlog | None",
    ) -> "Backlog | None":
        """Whom to wait for when the log goes on at `resumed` after a gap that began at `gap_from`; None: nobody.

        `log`: messages before it, in order; those whose newest row is older than `needed_from` do not count, because a
        restart would not read them again. `before`: the waiting that this gap interrupts, which goes on.
        """
        there = [
            one
            for one in log
            if one.newest >= needed_from
            and one.taken > gap_from - lateness_ns
            and one.taken - one.newest <= lateness_ns
        ]
        if before is None and not there:
            return None
        if before is None:
            made = cls(lateness_ns, resumed, resumed, there[0], watermark)
        else:
            made = before
            made.resumed = resumed
        for one in there:
            made._wait(one.node, max(one.newest, made.newest.get(one.node, one.newest)), resumed)
        return made

    def limit(self, node: str | None, newest: int, taken: int) -> int | None:
        """Take one message (`node` None: it has no row that counts); how far the watermark may go, None: any."""
        if node in self.newest and node is not None:
            if taken - newest <= self.lateness_ns:
                del self.newest[node]
            else:
                self._wait(node, max(newest, self.newest[node]), taken)
        if taken - self.began > LONGEST * self.lateness_ns:
            return None
        while self._order:
            oldest, name = self._order[0]
            if self.newest.get(name) == oldest:
                if taken - max(self.resumed, self.heard[name]) <= SILENT * self.lateness_ns:
                    return oldest - self.lateness_ns
                del self.newest[name]
            heapq.heappop(self._order)
        return None

    def _wait(self, node: str, newest: int, heard: int) -> None:
        self.newest[node], self.heard[node] = newest, heard
        heapq.heappush(self._order, (newest, node))
