"""Steps of the wall clock: seen by comparing it with the monotonic one, which nobody sets.

To change what counts as a step: `STEP_S`.
"""

import time
from collections.abc import Callable

STEP_S = 5.0  #: a window of a minute bears less; slewing and NTP's small steps stay far below


class Clock:
    """Tells when the wall clock was set, or the machine slept. Each reader of steps has one of its own."""

    def __init__(
        self,
        clock_ns: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        step_s: float = STEP_S,
    ) -> None:
        self._clock_ns = clock_ns
        self._monotonic = monotonic
        self._step_s = step_s
        self._apart_s = self._apart()

    def step_s(self) -> float:
        """Seconds that the wall clock has jumped since the last call, below 0 if it was set back; 0.0 for no step."""
        apart_s = self._apart()
        step_s = apart_s - self._apart_s
        self._apart_s = apart_s
        return step_s if abs(step_s) >= self._step_s else 0.0

    def _apart(self) -> float:
        return self._clock_ns() / 1e9 - self._monotonic()
