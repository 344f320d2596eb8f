"""The outbox: messages on their way to the log, bounded, kept in memory or in a spool on disk while the log is away.

To change what is lost first: `_make_room` and `Spool.drop`; how a backlog is paced: `_wait_s`.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from collectors.spool import Spool, SpoolError, Waiting
from streams import Outgoing, Producer
from telemetry.errors import TransportError

log = logging.getLogger(__name__)

MAX_BYTES = 64 << 20  #: more than a day of one node with eight GPUs at 1 Hz
PATIENCE_S = 5.0  #: how long a paced collector waits for room while the log takes messages
RETRY_S = (1.0, 10.0)  #: at most a third of the default lateness: agents must not come back far apart
FLUSH_EVERY_S = 1.0
FLUSH_TIMEOUT_S = 5.0
PROBE_TIMEOUT_S = 1.0  #: of a flush while the log is away: the spool and the collectors wait meanwhile
REPLAY_SPEED = 20.0  #: times real time: ten minutes in half of one, before windows give up waiting for this node
BACKLOG_S = 15.0  #: telemetry older than this is a backlog, and paced; fresh messages never wait
GAP_S = (0.0, 60.0)  #: what is believed of the time between two messages: the wall clock may have jumped
_CHUNK_BYTES = 1 << 20  #: moved to the spool at once


class Outbox:
    """A queue between collectors and the log.

    While the log is away, or does not keep up with collectors that have their own pace, the oldest telemetry is
    dropped to make room (other topics last), and counted in `dropped` and `dropped_samples`. Delivery is otherwise at
    least once: a message that the log refused is sent again, before those after it; other topics go before telemetry.
    Telemetry that had to wait follows at `replay_speed` times the pace at which it was made (0: as fast as it goes).

    With a spool every message goes through it, and stays there until the log has it. While the disk is in trouble
    messages wait in memory, up to `max_bytes`, and go from there.
    """

    def __init__(
        self,
        *,
        max_bytes: int = MAX_BYTES,
        spool: Spool | None = None,
        replay_speed: float = REPLAY_SPEED,
        monotonic: Callable[[], float] = time.monotonic,
        clock_ns: Callable[[], int] = time.time_ns,
        spread: Callable[[float], float] = lambda seconds: seconds,
    ) -> None:
        self._max_bytes = max_bytes
        self._spool = spool
        self._replay_speed = replay_speed
        self._monotonic = monotonic
        self._clock_ns = clock_ns
        self._spread = spread
        self._queues: dict[bool, deque[Waiting]] = {False: deque(), True: deque()}  # telemetry: True
        self._bytes = 0
        self._head: Waiting | None = None  # the next one to be sent
        self._changed = threading.Condition()
        self._closing = False
        self._retry_at = 0.0
        self._retry_s = RETRY_S[0]
        self._unflushed = False
        self._flushed_at = monotonic()
        self._paced_ns: int | None = None  # when the last message of the backlog was made
        self._paced_at = 0.0
        self._disk_again_at = 0.0
        self._dropping = False
        self._dropped = 0
        self._dropped_samples = 0
        self.available = True
        self.spool_works = True

    @property
    def messages(self) -> int:
        """How many messages wait; with a spool also those that the log has not confirmed yet."""
        head = self._head is not None and not self._head.id
        return len(self._queues[False]) + len(self._queues[True]) + head + self.spooled

    @property
    def spooled(self) -> int:
        """How many of them are on disk."""
        return self._spool.messages if self._spool else 0

    @property
    def bytes(self) -> int:
        """How many bytes wait, those of the spool's file included."""
        try:
            return self._bytes + (self._spool.bytes if self._spool else 0)
        except SpoolError:
            return self._bytes

    @property
    def dropped(self) -> int:
        """Messages dropped since the start."""
        return self._dropped + (self._spool.lost_messages if self._spool else 0)

    @property
    def dropped_samples(self) -> int:
        """Samples in them."""
        return self._dropped_samples + (self._spool.lost_samples if self._spool else 0)

    def put(self, message: Outgoing, *, patience_s: float | None, samples: int = 0) -> None:
        """Queue a message. While there is no room, wait this long (None: until there is), then drop the oldest."""
        patient = patience_s is None
        item = Waiting(message=message, samples=samples, made_ns=self._clock_ns(), patient=patient)
        with self._changed:
            if patient:
                self._changed.wait_for(lambda: self._closing or self._fits(item.size))
            elif not self._fits(item.size):
                self._changed.wait_for(lambda: self._closing or not self.available or self._fits(item.size), patience_s)
            if not self._closing:
                while not self._fits(item.size):
                    self._make_room()
            self._append(item)
            self._changed.notify_all()

    def send(self, producer: Producer, *, for_s: float, until: Callable[[], bool]) -> None:
        """Hand messages to the producer as they come, for this long or until then; only one thread may do so.

        Flushes when nothing waits any more, and every second: what was sent is then in the log, and readable.
        """
        end = self._monotonic() + for_s
        while not until():
            self._store()
            if self._head is None:
                self._head = self._take()
            with self._changed:
                now = self._monotonic()
                if now >= end:
                    return
                ready = self.available or now >= self._retry_at
                flush = self._unflushed and (self._head is None or now - self._flushed_at >= FLUSH_EVERY_S)
                wait_s = self._wait_s(self._head, now) if ready else self._retry_at - now
                if not flush and self._head is not None and wait_s > 0 and self._unflushed:
                    wait_s = min(wait_s, self._flushed_at + FLUSH_EVERY_S - now)
                if not ready or not (flush or (self._head is not None and wait_s <= 0)):
                    if not (ready and self._head is None and self._landed()):
                        self._changed.wait(max(0.0, min(end - now, wait_s)))
                    continue
            message = None if flush else self._head
            try:
                if message is None:
                    producer.flush(timeout_s=FLUSH_TIMEOUT_S if self.available else PROBE_TIMEOUT_S)
                else:
                    producer.send(message.message)
            except TransportError as error:
                self._refused(error)
            else:
                self._accepted(message, now)

    def close(self, producer: Producer, *, within_s: float) -> None:
        """Send what is left and wait until the log has it, as far as the time goes.

        The rest stays in the spool for the next start; without one it counts as dropped.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        until = self._monotonic() + within_s
        problem: TransportError | None = None
        self._disk_again_at = 0.0
        self._store()
        if self._spool is not None and self.spool_works and not self.available:
            until = 0.0  # all of it is safe, and the next start sends it
        while problem is None and self._monotonic() < until:
            self._head = self._head or self._take()
            if self._head is None:
                break
            try:
                producer.send(self._head.message)
            except TransportError as error:
                problem = error
            else:
                self._sent(self._head)
        try:
            producer.flush(timeout_s=max(0.1, until - self._monotonic()))
        except TransportError as error:
            problem = error
        else:
            self._settle()
        self._say_what_is_left(problem)

    def _say_what_is_left(self, problem: TransportError | None) -> None:
        unsent = [*self._queues[False], *self._queues[True]]
        unsent += [self._head] if self._head is not None and not self._head.id else []
        if self._spool is not None and self._spool.messages:
            log.info("%d messages wait in the spool for the next start", self._spool.messages)
        elif problem is not None and not unsent:
            log.error("stopped without the log's word for the last messages: %s", problem)
        if unsent:
            self._dropped += len(unsent)
            self._dropped_samples += sum(item.samples for item in unsent)
            log.error("stopped with %d messages unsent: %s", len(unsent), problem or "no time left")
        self._queues = {False: deque(), True: deque()}
        self._head = None
        self._bytes = 0
        if self._spool is not None:
            self._spool.close()

    def release(self) -> None:
        """Let nobody wait for room any more: the agent stops."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    # --- memory ---

    def _fits(self, size: int) -> bool:
        return not self._landed() or self._bytes + size <= self._max_bytes

    def _landed(self) -> bool:
        return bool(self._queues[False] or self._queues[True])

    def _append(self, item: Waiting) -> None:
        self._queues[item.telemetry].append(item)
        self._bytes += item.size

    def _make_room(self) -> None:
        item = (self._queues[True] or self._queues[False]).popleft()
        self._bytes -= item.size
        self._drop(1, item.samples)

    def _drop(self, messages: int, samples: int) -> None:
        self._dropped += messages
        self._dropped_samples += samples
        if not self._dropping:
            self._dropping = True
            log.warning("no room for what waits: the oldest telemetry is dropped and counted from now on")

    def _pop(self) -> Waiting | None:
        with self._changed:
            queue = self._queues[False] or self._queues[True]
            if not queue:
                return None
            item = queue.popleft()
            self._bytes -= item.size
            self._changed.notify_all()
            return item

    # --- disk ---

    def _store(self) -> None:
        """Move what has landed to the spool, as much as has room there; patient makers wait, others lose the oldest."""
        if self._spool is None or not self._landed() or self._monotonic() < self._disk_again_at:
            return
        chunk: list[Waiting] = []
        size = 0
        try:
            while (item := self._pop()) is not None:
                chunk.append(item)
                size += item.size
                if not self._spool.fits(size):
                    if item.patient and not self._closing:
                        self._unpop(chunk.pop())
                        break
                    while not self._spool.fits(size) and (lost := self._spool.drop())[0]:
                        self._drop(*lost)
                if size >= _CHUNK_BYTES:
                    self._spool.add(chunk)
                    chunk, size = [], 0
            self._spool.add(chunk)
        except SpoolError as error:
            for item in reversed(chunk):
                self._unpop(item)
            self._disk_again_at = self._monotonic() + RETRY_S[1]
            if self.spool_works:
                log.error("the spool cannot be used, messages wait in memory: %s", error)
            self.spool_works = False
        else:
            if not self.spool_works:
                log.info("the spool can be used again")
            self.spool_works = True

    def _unpop(self, item: Waiting) -> None:
        with self._changed:
            self._queues[item.telemetry].appendleft(item)
            self._bytes += item.size

    def _take(self) -> Waiting | None:
        if self._spool is None or not self.spool_works:
            return self._pop()
        try:
            return self._spool.take()
        except SpoolError as error:
            log.error("the spool cannot be read: %s", error)
            self.spool_works = False
            self._disk_again_at = self._monotonic() + RETRY_S[1]
            return None

    def _settle(self) -> None:
        if self._spool is None:
            return
        try:
            self._spool.settle()
        except SpoolError as error:
            log.error("messages that the log has stay in the spool, and may be sent again: %s", error)

    # --- the log ---

    def _wait_s(self, item: Waiting | None, now: float) -> float:
        """How long this message has to wait for its turn; without one, as long as one likes."""
        if item is None:
            return FLUSH_EVERY_S
        if not item.telemetry or not self._replay_speed or self._age_s(item) < BACKLOG_S or self._paced_ns is None:
            return 0.0
        gap_s = min(max((item.made_ns - self._paced_ns) / 1e9, GAP_S[0]), GAP_S[1])
        return self._paced_at + gap_s / self._replay_speed - now

    def _age_s(self, item: Waiting) -> float:
        return (self._clock_ns() - item.made_ns) / 1e9

    def _sent(self, item: Waiting) -> None:
        if item.id and self._spool is not None:
            self._spool.sent(item)
        self._head = None

    def _refused(self, error: TransportError) -> None:
        with self._changed:
            if self.available:
                where = "in memory" if self._spool is None else "in the spool"
                log.warning("the log cannot be used, messages wait %s: %s", where, error)
            self._retry_s = RETRY_S[0] if self.available else min(RETRY_S[1], 2 * self._retry_s)
            self.available = False
            self._retry_at = self._monotonic() + self._spread(self._retry_s)
            self._changed.notify_all()

    def _accepted(self, item: Waiting | None, now: float) -> None:
        """Only a flush proves that the log is there: a producer may queue what it is sent for a long time."""
        if item is None:
            self._settle()
        else:
            if item.telemetry:
                late = max(0.0, -self._wait_s(item, now))
                self._paced_at = now - late if late < 1.0 else now  # what little was missed is caught up with
                self._paced_ns = item.made_ns
            self._sent(item)
        with self._changed:
            flushed = item is None
            if flushed and not self.available:
                log.info("the log takes messages again; %d wait, %d were dropped", self.messages, self.dropped)
                self._dropping = False
            self.available = self.available or flushed
            self._unflushed = not flushed
            self._flushed_at = self._monotonic() if flushed else self._flushed_at
            self._changed.notify_all()
