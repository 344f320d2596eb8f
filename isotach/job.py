"""A process that runs one job over Kafka until a signal: what `isotach window` and `isotach score` share.

To add such a command: a module in `isotach/commands` that calls `run_job`.
"""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from isotach import roles
from isotach.connecting import wait_for_kafka
from isotach.process import Roles, stop_on_signals
from streams.counters import Counters

if TYPE_CHECKING:
    from streams import Transport


def run_job(settings: roles.Settings, name: str, job: "Callable[[Transport, Counters, threading.Event], None]") -> None:
    """Run the job until it is told to stop, once Kafka is there; raises TransportError when Kafka refuses us."""
    counters = Counters()
    with stop_on_signals() as stop:
        transport = wait_for_kafka(settings, stop)
        if transport is None:
            return
        try:
            with roles.metrics_of(settings, counters):  # who answers there has found Kafka
                work = Roles(stop)
                work.start(name, lambda stop: job(transport, counters, stop))
                work.wait()
        finally:
            transport.close()
