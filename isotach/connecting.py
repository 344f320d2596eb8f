"""Waiting for a Kafka that is not there yet, so that the order in which a site is started does not matter.

To change how often it is tried or told: `TRY_S`, `PAUSE_S`, `TELL_EVERY_S`.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from isotach import roles
from telemetry.errors import TransportError, TransportRefused

if TYPE_CHECKING:
    from streams import Transport

LOG = logging.getLogger("isotach")
TRY_S = 2.0
PAUSE_S = 1.0
TELL_EVERY_S = 30.0


def wait_for_kafka(
    settings: roles.Settings,
    stop: threading.Event,
    *,
    monotonic: Callable[[], float] = time.monotonic,
    pause: Callable[[threading.Event, float], bool] = threading.Event.wait,
) -> "Transport | None":
    """Kafka with its topics made and checked, as soon as it is there; None if `stop` came first.

    Raises TransportRefused when Kafka is there and refuses us, TransportError when its topics are not as they must be,
    SettingsError for settings that cannot be: none of these is cured by waiting.
    """
    transport = roles.kafka_untouched(settings)
    began, told = monotonic(), None
    while not stop.is_set():
        try:
            transport.reach(timeout_s=TRY_S)
        except TransportRefused:
            transport.close()
            raise
        except TransportError as error:
            now = monotonic()
            if told is None or now - told >= TELL_EVERY_S:
                told = now
                LOG.warning("waiting for Kafka, %.0f s so far: %s", now - began, error)
            pause(stop, PAUSE_S)
            continue
        if told is not None:
            LOG.info("Kafka is there, after %.0f s", monotonic() - began)
        try:
            transport.ensure_topics(roles.topics(settings))
        except TransportError:
            transport.close()
            raise
        return transport
    transport.close()
    return None


class Connection:
    """A Kafka that may not be there yet, for the threads of one process. One of them waits for it."""

    def __init__(self, settings: roles.Settings) -> None:
        self._settings = settings
        self._found: Transport | None = None

    def wait(self, stop: threading.Event) -> "Transport | None":
        """As `wait_for_kafka`."""
        self._found = wait_for_kafka(self._settings, stop)
        return self._found

    def transport(self) -> "Transport":
        """The transport; raises TransportError while it has not been found."""
        if self._found is None:
            raise TransportError("Kafka is not there yet")
        return self._found

    def close(self) -> None:
        """Let go of what was found."""
        if self._found is not None:
            self._found.close()
