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
    last one, which comes late.
    """

    def __init__(self, *, interval_s: float, now: float, jitter: random.Random) -> None:
        self._interval_s = interval_s
        self._jitter = jitter
        self._due = now + jitter.uniform(0.0, min(interval_s, MAX_START_JITTER_S))
        self._failures = 0

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
        return missed

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
