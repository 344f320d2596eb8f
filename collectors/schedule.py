"""When a collector is asked next: on an absolute grid that does not drift, later while its source is away.

To change how failures are spaced: `FIRST_RETRY_S` and `LAST_RETRY_S`.
"""

import math
import random

FIRST_RETRY_S = 1.0
LAST_RETRY_S = 300.0
MAX_START_JITTER_S = 10.0  #: agents started together must not ask and send together


class Schedule:
    """Ticks at start + k * interval of a monotonic clock; jumps of the wall clock do not exist here.

    An interval of 0 means: again at once. Ticks that pass while a call runs are missed, not made up for, except the
    last one, which comes late. The first tick comes within ten seconds; where the interval is longer the second one
    comes anywhere in it, so that those who start together end up spread over all of it.
    """

    def __init__(self, *, interval_s: float, now: float, jitter: random.Random) -> None:
        self._interval_s = interval_s
        self._jitter = jitter
        self._due = now + jitter.uniform(0.0, min(interval_s, MAX_START_JITTER_S))
        self._failures = 0
        self._near = interval_s > MAX_START_JITTER_S  #: the first tick comes sooner than its place in the interval

    def wait_s(self, now: float) -> float:
        """Seconds until the next tick, 0 if it is due."""
        return max(0.0, self._due - now)

    def done(self, now: float) -> int:
        """The tick was served: move to the next one; returns how many were missed meanwhile."""
        self._failures = 0
        if self._interval_s <= 0:
            self._due = now
            return 0
        missed = max(0, math.floor((now - self._due) / self._interval_s) - 1)
        self._due += (missed + 1) * self._interval_s
        if self._near:
            self._near = False
            self._due = now + self._jitter.uniform(0.0, self._interval_s)
        return missed

    def pace(self, interval_s: float, *, now: float) -> None:
        """Another interval from now on; a tick that was far off comes within one, a source that is away stays so.

        Where ticks become rarer the next one is put anywhere in what is added: schedules that were spread over the
        short interval are spread over the long one.
        """
        before, self._interval_s = self._interval_s, interval_s
        if self._failures or before <= 0 or interval_s <= 0 or before == interval_s:
            return
        if interval_s > before:
            self._due += self._jitter.uniform(0.0, interval_s - before)
        elif self._due - now > interval_s:
            self._due -= math.floor((self._due - now) / interval_s) * interval_s

    def pause(self, now: float, seconds: float) -> None:
        """Not before `seconds` from now."""
        self._due = max(self._due, now + seconds)

    def back_off(self, now: float) -> int:
        """The source is away: wait twice as long as last time, on the grid again; returns the ticks that are missed."""
        delay = min(LAST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(self._failures, 20))
        self._failures += 1
        until = now + delay * self._jitter.uniform(0.8, 1.2)
        if self._interval_s <= 0:
            self._due = until
            return 0
        ticks = max(1, math.ceil((until - self._due) / self._interval_s))
        self._due += ticks * self._interval_s
        return ticks - 1
