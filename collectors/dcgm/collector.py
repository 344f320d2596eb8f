"""GPU samples, inventory, events and jobs of many nodes from their dcgm-exporters, without touching a node.

To find targets in another way: `discovery.py`; to read another dialect: `labels.py`.
"""

import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from collectors import Reading
from collectors.dcgm.scraper import Scraper
from collectors.dcgm.targets import Source
from telemetry.errors import NoData, SettingsError
from telemetry.records import Event

MOST_TROUBLES = 20  #: targets whose failure is an event of its own in one reading; the others are a number
ASKED_TIMES = 5  #: the agent takes what came so many times an interval


class Dcgm:
    """Samples of every GPU that the exporters in `sources` show, one per scrape, with the time of the scrape.

    Each target is scraped every `interval_s` in a thread of this collector, spread over the interval; a call gives what
    came since the last one. A target that is dead, slow or hostile costs the others nothing. What repeats is not given
    again: a frozen exporter's GPUs become unknown. Raises SourceUnavailable when it is not known which targets there
    are; NoData when nothing came. `wait_s`: how long a call waits for the first page.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        node: str,
        interval_s: float = 15.0,
        timeout_s: float = 10.0,
        ca_file: Path | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
        wait_s: float = 0.0,
        look_every_s: float = 5.0,
    ) -> None:
        if not sources:
            raise SettingsError("the collector dcgm needs targets: --dcgm-targets, --dcgm-dns or --dcgm-kubernetes")
        self._wait_s = wait_s
        self._node = node
        self._clock_ns = clock_ns
        self._scraper = Scraper(
            sources,
            node=node,
            interval_s=interval_s,
            timeout_s=timeout_s,
            context=tls_context(ca_file),
            clock_ns=clock_ns,
            look_every_s=look_every_s,
        )

    @property
    def targets(self) -> int:
        """Targets that are listed now."""
        return self._scraper.targets

    def collect(self) -> Reading:
        """Everything that the exporters showed since the last call."""
        self._scraper.start()
        readings, due = self._scraper.take(wait_s=self._wait_s)
        if not readings and not due:
            raise NoData("no page since the last call")
        rejected: Counter[str] = Counter()
        for reading in readings:
            rejected.update(reading.rejected)
        return Reading(
            samples=[batch for reading in readings for batch in reading.samples],
            inventory=[record for reading in readings for record in reading.inventory],
            events=self._bounded(event for reading in readings for event in reading.events),
            jobs=[jobs for reading in readings for jobs in reading.jobs],
            rejected=dict(rejected),
            due=due,
        )

    def close(self) -> None:
        """End the scraper's thread; safe from another thread, and more than once."""
        self._scraper.close()

    def _bounded(self, events: Iterable[Event]) -> list[Event]:
        """A network that breaks is one story, not a thousand events."""
        kept: list[Event] = []
        troubles = 0
        for event in events:
            troubles += event.kind == "collector_failed"
            if event.kind != "collector_failed" or troubles <= MOST_TROUBLES:
                kept.append(event)
        if troubles > MOST_TROUBLES:
            detail = f"dcgm: {troubles - MOST_TROUBLES} more exporters failed at the same time"
            kept.append(
                Event(time_ns=self._clock_ns(), node=self._node, gpu_uuid="", kind="collector_failed", detail=detail)
            )
        return kept


def tls_context(ca_file: Path | None) -> ssl.SSLContext:
    """What https targets are checked with: the system's authorities, or those of the file; raises SettingsError."""
    try:
        return ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"--dcgm-ca-file {ca_file}: {error}") from None
