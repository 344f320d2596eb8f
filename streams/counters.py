"""What the jobs count about themselves, for /metrics and `isotach doctor`.

To add one: one line in `HELP`, then `add` or `set` where it happens.
"""

import threading
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

HELP: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {
        # name: (kind, label or "", help)
        "messages": ("counter", "topic", "Messages read."),
        "rows": ("counter", "", "Rows of samples accepted."),
        "rejected": ("counter", "rule", "Messages and rows refused, by rule; each is in the dead-letter topic."),
        "garbage_values": ("counter", "metric", "Values outside their metric's valid range, made null."),
        "unknown_values": ("counter", "", "Values of JSON samples under names that are no metric, left out."),
        "windows": ("counter", "", "Windows published."),
        "window_rows": ("counter", "", "Rows of windows published."),
        "open_rows": ("gauge", "", "Rows held in open windows."),
        "paused": ("gauge", "", "Partitions paused because too many rows are held."),
        "retries": ("counter", "job", "Times a job began anew after the log or the store could not be used."),
        "scorer_active": ("gauge", "", "1 while this member is the active scorer."),
        "scored_windows": ("counter", "complete", "Windows applied to the scores."),
        "stale_windows": ("counter", "", "Windows that came after a later one had been applied: stored, not scored."),
        "skipped": ("counter", "topic", "Messages the scorer could not read; the materialiser sets them aside."),
        "stored_rows": ("counter", "table", "Rows written to the store."),
    }
)
"""Everything counted, by name without its prefix."""


class Counters:
    """Numbers by name and label; safe for threads. Also a collector for a prometheus_client registry."""

    def __init__(self, *, prefix: str = "isotach_jobs_") -> None:
        self._prefix = prefix
        self._lock = threading.Lock()
        self._values: dict[tuple[str, str], float] = {}

    def add(self, name: str, amount: float = 1, label: str = "") -> None:
        """Add to a counter; raises KeyError for a name that is not in `HELP`."""
        self._check(name, "counter")
        if amount:
            with self._lock:
                self._values[name, label] = self._values.get((name, label), 0) + amount

    def set(self, name: str, value: float, label: str = "") -> None:
        """Set a gauge; raises KeyError for a name that is not in `HELP`."""
        self._check(name, "gauge")
        with self._lock:
            self._values[name, label] = value

    @staticmethod
    def _check(name: str, kind: str) -> None:
        if HELP[name][0] != kind:
            raise KeyError(f"{name} is no {kind}")

    def value(self, name: str, label: str = "") -> float:
        """The number now, 0 if nothing was counted."""
        with self._lock:
            return self._values.get((name, label), 0)

    def snapshot(self) -> Mapping[tuple[str, str], float]:
        """Every number by (name, label)."""
        with self._lock:
            return dict(self._values)

    def collect(self) -> Iterator[Metric]:
        """The numbers as metric families of prometheus_client."""
        values = self.snapshot()
        for name, (kind, label, text) in HELP.items():
            make = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
            family = make(self._prefix + name, text, labels=[label] if label else [])
            for (found, value_label), value in values.items():
                if found == name:
                    family.add_metric([value_label] if label else [], value)
            yield family
