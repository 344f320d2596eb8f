"""The outbox: messages on their way to the log, bounded in memory, kept while the log is away.

To keep them on disk instead: another class with `put`, `send` and `empty`.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from streams import Outgoing, Producer
from streams.topics import TELEMETRY
from telemetry.errors import TransportError

log = logging.getLogger(__name__)

MAX_BYTES = 64 << 20  #: more than a day of one node with eight GPUs at 1 Hz
PATIENCE_S = 5.0  #: how long a paced collector waits for room while the log takes messages
RETRY_S = (1.0, 10.0)  #: at most a third of the default lateness: agents must not come back far apart
FLUSH_EVERY_S = 1.0
FLUSH_TIMEOUT_S = 5.0


class Outbox:
    """A queue between collectors and the log.

    While the log is away, or does not keep up with collectors that have their own pace, the oldest telemetry is
    dropped to make room (other topics last), and counted in `dropped`. Delivery is otherwise at least once: a message
    that the log refused is sent again, before those after it.
    """

    def __init__(self, *, max_bytes: int = MAX_BYTES, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes = max_bytes
        self._monotonic = monotonic
        self._queue: deque[Outgoing] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._retry_at = 0.0
        self._retry_s = RETRY_S[0]
        self._unflushed = False
        self._flushed_at = monotonic()
        self.available = True
        self.dropped = 0

    @property
    def messages(self) -> int:
        """How many messages wait."""
        return len(self._queue)

    @property
    def bytes(self) -> int:
        """How many bytes wait."""
        return self._bytes

    def put(self, message: Outgoing, *, patience_s: float | None) -> None:
        """Queue a message. While there is no room, wait this long (None: until there is), then drop the oldest."""
        size = _size(message)
        with self._changed:
            if patience_s is None:
                self._changed.wait_for(lambda: self._closing or self._fits(size))
            elif not self._fits(size):
                self._changed.wait_for(lambda: self._closing or not self.available or self._fits(size), patience_s)
            if not self._closing:
                while self._queue and not self._fits(size):
                    self._drop()
            self._queue.append(message)
            self._bytes += size
            self._changed.notify_all()

    def send(self, producer: Producer, *, for_s: float, until: Callable[[], bool]) -> None:
        """Hand messages to the producer as they come, for this long or until then; only one thread may do so.

        Flushes when nothing waits any more, and every second: what was sent is then in the log, and readable.
        """
        end = self._monotonic() + for_s
        while not until():
            with self._changed:
                now = self._monotonic()
                if now >= end:
                    return
                ready = self.available or now >= self._retry_at
                flush = self._unflushed and (not self._queue or now - self._flushed_at >= FLUSH_EVERY_S)
                if not ready or not (flush or self._queue):
                    self._changed.wait((end if ready else min(end, self._retry_at)) - now)
                    continue
                message = None if flush else self._take()
            try:
                if message is None:
                    producer.flush(timeout_s=FLUSH_TIMEOUT_S)
                else:
                    producer.send(message)
            except TransportError as error:
                self._refused(message, error)
            else:
                self._accepted(flushed=message is None)

    def close(self, producer: Producer, *, within_s: float) -> None:
        """Send what is left and wait until the log has it, as far as the time goes; the rest counts as dropped."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        until = self._monotonic() + within_s
        problem: TransportError | None = None
        while self._queue and problem is None and self._monotonic() < until:
            message = self._queue.popleft()
            try:
                producer.send(message)
            except TransportError as error:
                self._queue.appendleft(message)
                problem = error
        try:
            producer.flush(timeout_s=max(0.1, until - self._monotonic()))
        except TransportError as error:
            problem = error
        if self._queue:
            self.dropped += len(self._queue)
            log.error("stopped with %d messages unsent: %s", len(self._queue), problem or "no time left")
        elif problem is not None:
            log.error("stopped without the log's word for the last messages: %s", problem)
        self._queue.clear()
        self._bytes = 0

    def release(self) -> None:
        """Let nobody wait for room any more: the agent stops."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _fits(self, size: int) -> bool:
        return not self._queue or self._bytes + size <= self._max_bytes

    def _drop(self) -> None:
        oldest = next((i for i, message in enumerate(self._queue) if message.topic == TELEMETRY), 0)
        self._bytes -= _size(self._queue[oldest])
        del self._queue[oldest]
        self.dropped += 1

    def _take(self) -> Outgoing:
        message = self._queue.popleft()
        self._bytes -= _size(message)
        return message

    def _refused(self, message: Outgoing | None, error: TransportError) -> None:
        with self._changed:
            if message is not None:
                self._queue.appendleft(message)
                self._bytes += _size(message)
            if self.available:
                log.warning("the log cannot be used, messages wait in memory: %s", error)
            self._retry_s = RETRY_S[0] if self.available else min(RETRY_S[1], 2 * self._retry_s)
            self.available = False
            self._retry_at = self._monotonic() + self._retry_s
            self._changed.notify_all()

    def _accepted(self, *, flushed: bool) -> None:
        """Only a flush proves that the log is there: a producer may queue what it is sent for a long time."""
        with self._changed:
            if flushed and not self.available:
                log.info("the log takes messages again; %d wait, %d were dropped", len(self._queue), self.dropped)
            self.available = self.available or flushed
            self._unflushed = not flushed
            self._flushed_at = self._monotonic() if flushed else self._flushed_at
            self._changed.notify_all()


def _size(message: Outgoing) -> int:
    return 200 + len(message.value or b"") + sum(len(value) for value in message.headers.values())
