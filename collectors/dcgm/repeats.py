"""Repeats: an exporter that is asked more often than it looks, or that serves the same numbers for ever.

To change when it counts as frozen: `FROZEN_TICKS` and `FROZEN_S`.
"""

from collections import deque
from collections.abc import Mapping
from statistics import median

from collectors.dcgm.fields import FIELDS

FROZEN_TICKS = 5
FROZEN_S = 60.0
GAPS = 8  #: gaps between news that the exporter's own period is told from
MOST_TICKS = 20

_ALWAYS_MOVING = tuple(
    name for name, field in FIELDS.items() if field.metric.name in ("energy_mj", "sm_cycles_elapsed_total")
)
_NEARLY = tuple(name for name, field in FIELDS.items() if field.metric.name in ("power_w", "power_instant_w"))

Values = Mapping[str, float]


class Repeats:
    """What one node showed last. A GPU repeats itself if all its numbers are those of last time, and it has a counter
    that never stands still (energy, SM cycles); without one, if this holds for power and every number of all GPUs.
    """

    def __init__(self) -> None:
        self._last: dict[str, Values] = {}
        self._news_at = 0.0
        self._gaps: deque[int] = deque(maxlen=GAPS)
        self._ticks = 0
        self.frozen_since: float | None = None

    def fresh(self, gpus: Mapping[str, Values], *, now: float) -> frozenset[str]:
        """The GPUs whose numbers are new; `now` on a monotonic clock. To be asked once a scrape."""
        same = {key for key, values in gpus.items() if self._last.get(key) == values}
        repeats = {key for key in same if any(gpus[key].get(name, 0) > 0 for name in _ALWAYS_MOVING)}
        if same == gpus.keys() and any(values.get(name, 0) > 0 for values in gpus.values() for name in _NEARLY):
            repeats = same
        self._last = dict(gpus)
        self._ticks += 1
        if len(repeats) < len(gpus) or not gpus:
            if self._news_at:
                self._gaps.append(self._ticks)
            self._ticks, self._news_at, self.frozen_since = 0, now, None
        elif self._ticks >= max(FROZEN_TICKS, 2 * self.period_ticks) and now - self._news_at >= FROZEN_S:
            self.frozen_since = self._news_at
        return frozenset(gpus.keys() - repeats)

    @property
    def period_ticks(self) -> int:
        """After how many scrapes its numbers are new: 1, or more for an exporter that looks less often."""
        return min(MOST_TICKS, round(median(self._gaps))) if len(self._gaps) >= GAPS // 2 else 1
