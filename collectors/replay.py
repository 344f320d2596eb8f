"""Recorded telemetry as a collector: at the speed of the recording, at a multiple of it, or as fast as it goes.

To replay another format: give its batches in order of time; reading files is not done here, so that nodes stay light.
"""

import contextlib
import logging
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

from collectors import Reading
from telemetry.errors import EndOfInput, NoData, SettingsError
from telemetry.records import NodeInventory, SampleBatch

log = logging.getLogger(__name__)

MAX_SLEEP_S = 0.5  #: one call waits no longer than this for the next batch, so that an agent can stop
SKEW_WARNING_S = 60.0  #: samples further ahead of the clock than this are refused by the window job


class Replay:
    """Sample batches of a recording, one a call; raises EndOfInput after the last one, or begins again with `loop`.

    `speed` 1.0 gives each batch when its last sample would have been taken, 10.0 ten times as fast, None at once.
    `rebase` "keep" leaves the times as recorded, "now" moves them all by one amount so that the first sample is now;
    a second round of `loop` continues where the first one ended. Faster than 1.0, times moved to now run ahead of the
    clock. `inventory` is given once, before the first sample. Nothing is lost and nothing is given twice.
    """

    def __init__(
        self,
        *,
        batches: Iterable[SampleBatch],
        speed: float | None = None,
        loop: bool = False,
        rebase: Literal["keep", "now"] = "keep",
        inventory: Sequence[NodeInventory] = (),
        clock_ns: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if speed is not None and not 0 < speed < float("inf"):
            raise SettingsError(f"speed of a replay is {speed}; above 0, or none for as fast as it goes")
        if rebase not in ("keep", "now"):
            raise SettingsError(f"rebase of a replay is {rebase!r}; keep or now")
        if loop and isinstance(batches, Iterator):
            raise SettingsError("a replay in a loop needs a recording that can be read again")
        self._source = batches
        self._iterator = iter(batches)
        self._speed = speed
        self._loop = loop
        self._rebase = rebase
        self._inventory = tuple(inventory)
        self._clock_ns = clock_ns
        self._monotonic = monotonic
        self._sleep = sleep
        self._next: SampleBatch | None = None
        self._began: tuple[float, int] | None = None  # monotonic time, and the first sample's time as given out
        self._first_ns = 0
        self._end_ns = 0
        self._shift_ns = 0
        self._warned = False

    def collect(self) -> Reading:
        """The next batch when its time has come; NoData while it has not."""
        batch = self._peek()
        began, first_ns = self._began or (0.0, 0)
        if self._speed is not None:
            elapsed_s = (max(batch.time_ns) + self._shift_ns - first_ns) / 1e9
            ahead_s = began + elapsed_s / self._speed - self._monotonic()
            if ahead_s > 0:
                self._sleep(min(ahead_s, MAX_SLEEP_S))
            if ahead_s > MAX_SLEEP_S:
                raise NoData(f"the next batch is due in {ahead_s:.1f} s")
        self._next = None
        self._end_ns = max(self._end_ns, max(batch.time_ns) + round(batch.interval_s * 1e9))
        inventory, self._inventory = self._inventory, ()
        return Reading(samples=[self._moved(batch)], inventory=self._shifted_inventory(inventory))

    def close(self) -> None:
        """Let go of the recording."""
        close = getattr(self._iterator, "close", None)
        if close is not None:
            with contextlib.suppress(ValueError):  # another thread is reading from it right now: it ends with that
                close()
        self._iterator = iter(())
        self._source = ()
        self._next = None

    def _peek(self) -> SampleBatch:
        if self._next is None:
            self._next = self._read()
        if self._began is None:
            self._first_ns = min(self._next.time_ns)
            self._end_ns = self._first_ns
            if self._rebase == "now":
                self._shift_ns = self._clock_ns() - self._first_ns
            self._began = (self._monotonic(), self._first_ns + self._shift_ns)
        return self._next

    def _read(self) -> SampleBatch:
        for attempt in ("go on", "begin again"):
            for batch in self._iterator:
                if len(batch):
                    return batch
            if not self._loop or attempt == "begin again" or self._began is None:
                break
            self._iterator = iter(self._source)
            self._shift_ns += self._end_ns - self._first_ns
        raise EndOfInput("the recording is at its end")

    def _moved(self, batch: SampleBatch) -> SampleBatch:
        if not self._shift_ns:
            return batch
        moved = array("q", (time_ns + self._shift_ns for time_ns in batch.time_ns))
        ahead_s = (max(moved) - self._clock_ns()) / 1e9
        if ahead_s > SKEW_WARNING_S and not self._warned:
            self._warned = True
            log.warning("the replay runs %.0f s ahead of the clock: samples from the future are refused", ahead_s)
        if isinstance(batch.time_ns, list | tuple):
            return replace(batch, time_ns=moved.tolist())
        return replace(batch, time_ns=moved)

    def _shifted_inventory(self, inventory: Sequence[NodeInventory]) -> list[NodeInventory]:
        return [replace(record, seen_ns=record.seen_ns + self._shift_ns) for record in inventory]
