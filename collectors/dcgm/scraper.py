"""The scraper: one thread with one event loop, a task for each target, scrapes spread evenly over the interval.

To change how a target that fails is tried again: `_pause_ticks`.
"""

import asyncio
import contextlib
import logging
import random
import resource
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from collectors import Reading
from collectors.dcgm.exporter import OWNED_TICKS, Claims, Exporter
from collectors.dcgm.fetch import fetch
from collectors.dcgm.names import THREADS, Names
from collectors.dcgm.targets import Source, Target
from telemetry.errors import BadInput, SourceUnavailable

log = logging.getLogger(__name__)

GOLDEN = 0.6180339887498949  #: its multiples fill an interval evenly, however many there are
LONGEST_PAUSE_S = 300.0
LOOK_EVERY_S = 5.0
KEPT = 4  #: readings of a target that wait for the agent; older ones are dropped
FILES = 256  #: open files beside one for each target


class Scraper:
    """Scrapes targets as `sources` list them. `take` gives what came since; everything else runs in its own thread.

    A target costs the others nothing: each has its own deadline, bounds and back-off.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        node: str,
        interval_s: float,
        timeout_s: float,
        context: ssl.SSLContext | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
        look_every_s: float = LOOK_EVERY_S,
    ) -> None:
        self._sources = list(sources)
        self._node = node
        self._interval_s = interval_s
        self._timeout_s = min(timeout_s, interval_s)
        self._context = context
        self._clock_ns = clock_ns
        self._look_every_s = look_every_s
        self._claims = Claims(keep_s=OWNED_TICKS * interval_s)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="dcgm-names")
        self._spread = random.Random()  # noqa: S311 - spreads load, guards nothing
        self._lock = threading.Lock()
        self._readings: deque[Reading] = deque()
        self._due = 0
        self._arrived = threading.Event()
        self._exporters: dict[str, Exporter] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._turn = 0
        self._listed: list[Sequence[Target]] = [()] * len(self._sources)
        self._trouble: list[str | None] = [None] * len(self._sources)
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self.closed = False

    def start(self) -> None:
        """Begin; harmless when it has begun."""
        if self._thread is None and not self.closed:
            self._thread = threading.Thread(target=self._run, name="dcgm-scraper", daemon=True)
            self._thread.start()

    def take(self, *, wait_s: float = 0.0) -> tuple[list[Reading], int]:
        """What came since the last call, and how many samples of GPUs were due; waits so long for the first one.

        Raises SourceUnavailable if it is not known which targets there are.
        """
        if wait_s > 0:
            self._arrived.wait(wait_s)
        with self._lock:
            readings, due = list(self._readings), self._due
            self._readings.clear()
            self._due = 0
            self._arrived.clear()
        if self._error is not None:
            raise self._error
        problems = [trouble for trouble in self._trouble if trouble is not None]
        if problems and not any(self._listed):
            raise SourceUnavailable("; ".join(problems))
        return readings, due

    @property
    def targets(self) -> int:
        """Targets that are listed now."""
        return len(self._exporters)

    def close(self) -> None:
        """End the thread; what it gave until now can still be taken."""
        self.closed = True
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                loop.call_soon_threadsafe(stop.set)
        if self._thread is not None:
            self._thread.join(5.0)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        async def guarded() -> BaseException | None:
            (ended,) = await asyncio.gather(self._main(), return_exceptions=True)
            return ended

        self._error = asyncio.run(guarded())
        self._arrived.set()

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._names = Names(self._pool)
        while not self._stop.is_set() and not self.closed:
            await self._look()
            self._claims.forget(now=self._loop.time())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), self._look_every_s)
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _look(self) -> None:
        """Which targets there are: new ones get a task, those that left lose theirs."""
        loop = asyncio.get_running_loop()
        for place, source in enumerate(self._sources):
            try:
                self._listed[place] = await loop.run_in_executor(None, source.find)
                self._trouble[place] = None
            except SourceUnavailable as error:
                if self._trouble[place] != str(error):
                    log.warning("dcgm: %s; going on with %d targets of before", error, len(self._listed[place]))
                self._trouble[place] = str(error)
                if self._listed[place]:
                    self._put(Reading(rejected={"targets:unreadable": 1}))
                else:
                    self._arrived.set()
        wanted = {target.url: target for targets in self._listed for target in targets}
        for url in self._exporters.keys() - wanted.keys():
            self._tasks.pop(url).cancel()
            del self._exporters[url]
        _room_for(len(wanted))
        for url, target in wanted.items():
            known = self._exporters.get(url)
            if known is not None and known.target == target:
                continue
            if known is not None:
                self._tasks.pop(url).cancel()
            exporter = Exporter(target, interval_s=self._interval_s, claims=self._claims, fallback_node=self._node)
            self._exporters[url] = exporter
            delay_s = (self._turn * GOLDEN) % 1.0 * self._interval_s
            self._turn += 1
            self._start_task(exporter, loop.time() + delay_s)

    def _start_task(self, exporter: Exporter, due: float) -> None:
        task = asyncio.get_running_loop().create_task(self._follow(exporter, due))
        task.add_done_callback(lambda done: self._ended(exporter, done))
        self._tasks[exporter.target.url] = task

    def _ended(self, exporter: Exporter, task: asyncio.Task[None]) -> None:
        """A page that the code here could not cope with costs its target a back-off, not its life."""
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        log.error("dcgm: %s: its page could not be handled", exporter.where, exc_info=error)
        self._failed(exporter, "failed", f"{type(error).__name__}: {error}")
        pause_s = self._pause_ticks(exporter.failures) * self._interval_s
        self._start_task(exporter, asyncio.get_running_loop().time() + pause_s)

    async def _follow(self, exporter: Exporter, due: float) -> None:
        """Scrape one target on its grid, for as long as it is listed."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(max(0.0, due - loop.time()))
            known = exporter.gpus
            await self._scrape(exporter)
            ticks = self._pause_ticks(exporter.failures)
            late = max(0, int((loop.time() - due) / self._interval_s))
            due += max(ticks, late) * self._interval_s
            with self._lock:
                self._due += max(exporter.gpus, known) * max(ticks, late, 1)

    def _pause_ticks(self, failures: int) -> int:
        """Ticks until the next scrape: one, after failures 1, 1, 2, 4 ... up to five minutes, some more or less."""
        if failures <= 1:
            return 1
        longest = max(1, int(LONGEST_PAUSE_S / self._interval_s))
        ticks: int = min(longest, 2 ** min(failures - 2, 12))
        return max(1, round(ticks * self._spread.uniform(0.75, 1.25)))

    async def _scrape(self, exporter: Exporter) -> None:
        loop = asyncio.get_running_loop()
        address = exporter.target.address
        try:
            async with asyncio.timeout(self._timeout_s):
                ip = await self._names.address(address.host)
                body = await fetch(address, ip=ip, max_bytes=exporter.max_bytes, context=self._context)
            for reading in exporter.read(body, time_ns=self._clock_ns(), now=loop.time()):
                self._put(reading)
        except BadInput as error:
            self._failed(exporter, error.rule, error.detail)
        except TimeoutError:
            self._names.failed(address.host)
            self._failed(exporter, "timeout", f"no whole page within {self._timeout_s:g} s")
        except OSError as error:
            self._names.failed(address.host)
            self._failed(exporter, "unreachable", error.strerror or str(error))

    def _failed(self, exporter: Exporter, reason: str, detail: str) -> None:
        now = asyncio.get_running_loop().time()
        self._put(exporter.failed(reason, detail, time_ns=self._clock_ns(), now=now))

    def _put(self, reading: Reading) -> None:
        with self._lock:
            self._readings.append(reading)
            if len(self._readings) > KEPT * max(100, len(self._exporters)):
                self._readings.popleft()
                self._readings[0] = _counted(self._readings[0])
            self._arrived.set()


def _counted(reading: Reading) -> Reading:
    rejected = dict(reading.rejected)
    rejected["reading:dropped"] = rejected.get("reading:dropped", 0) + 1
    return Reading(
        samples=reading.samples,
        inventory=reading.inventory,
        events=reading.events,
        jobs=reading.jobs,
        rejected=rejected,
    )


def _room_for(targets: int) -> None:
    """As many open files as the system lets this process have, if the usual number is too few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = targets + FILES
    if soft < wanted and soft != resource.RLIM_INFINITY:
        limit = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))
