"""A producer for a log that may not be there yet: it connects when it is first needed, and tries again.

To change how it connects: the `connect` that its maker gives.
"""

import threading
from collections.abc import Callable

from streams import Outgoing, Producer


class LateProducer:
    """Sends through what `connect` returns, called at the first message and again until it raises no TransportError.

    What cannot be sent is the caller's to keep, as with any producer. Safe for several threads.
    """

    def __init__(self, connect: Callable[[], Producer]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._producer: Producer | None = None

    def _there(self) -> Producer:
        with self._lock:
            if self._producer is None:
                self._producer = self._connect()
            return self._producer

    def send(self, message: Outgoing) -> None:
        """Connect if need be, then as the producer does; raises TransportError while the log is away."""
        self._there().send(message)

    def flush(self, *, timeout_s: float = 60.0) -> None:
        """Nothing was sent before the connection, so nothing waits."""
        if self._producer is not None:
            self._producer.flush(timeout_s=timeout_s)

    def close(self, *, timeout_s: float = 60.0) -> None:
        """Flush and let go of what was connected."""
        if self._producer is not None:
            self._producer.close(timeout_s=timeout_s)
