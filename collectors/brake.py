"""The brake: how many times slower than asked the agent goes, so that it does not cost its node more than allowed.

To change how fast it acts: `SPAN_S` and `CALM_SPANS`; how far it goes: `MOST`.
"""

import logging
from collections.abc import Callable

log = logging.getLogger(__name__)

SPAN_S = 60.0  #: what is compared with the limit: the mean over so long
MOST = 8  #: samples are never further apart than so many times their interval
AT_ONCE = 2  #: times the limit in one span; less has to last for two, as a fresh process that opens all GPUs does not
CALM_SPANS = 5  #: spans in a row with room for twice the rate, before the rate is doubled
CALM_RATIO = 0.45  #: of the limit: at twice the rate it would still be below nine tenths of it


class Brake:
    """Doubles the time between samples while the agent costs more than `max_ratio` of one core; 0: never.

    A cost is given as CPU seconds since any start. It lets go by halves, each after five minutes in which twice the
    rate would have been well within the limit: an agent that is too dear at its full rate stays slow.
    """

    def __init__(self, *, max_ratio: float, now: float, cpu_s: float) -> None:
        self.max_ratio = max_ratio
        self.factor = 1
        self._since = now
        self._cpu_s = cpu_s
        self._calm = 0
        self._dear = False

    def look(self, *, now: float, cpu_s: Callable[[], float]) -> bool:
        """Whether the factor has changed; the cost is asked for once a minute only."""
        if now - self._since < SPAN_S:
            return False
        spent = cpu_s()
        ratio = max(0.0, spent - self._cpu_s) / (now - self._since)
        self._since, self._cpu_s = now, spent
        before, was_dear = self.factor, self._dear
        self._dear = ratio > self.max_ratio
        if self.max_ratio <= 0:
            self.factor, self._calm = 1, 0
        elif self._dear:
            self._calm = 0
            if was_dear or ratio > AT_ONCE * self.max_ratio:
                self.factor = min(MOST, 2 * self.factor)
        elif ratio < CALM_RATIO * self.max_ratio and self.factor > 1:
            self._calm += 1
            if self._calm >= CALM_SPANS:
                self.factor, self._calm = self.factor // 2, 0
        else:
            self._calm = 0
        if self.factor > before:
            log.warning(
                "the agent took %.1f %% of a core for a minute, %.1f %% are allowed (max_cpu_ratio): "
                "it samples %d times slower than asked",
                100 * ratio,
                100 * self.max_ratio,
                self.factor,
            )
        elif self.factor < before:
            slower = "at its full rate" if self.factor == 1 else f"{self.factor} times slower than asked"
            log.info("the agent took %.1f %% of a core: it samples %s again", 100 * ratio, slower)
        return self.factor != before
