"""`isotach window`: the window job as a process of its own; run as many as the telemetry needs.

To change what a window holds: `analytics/features.py`.
"""

import threading
from typing import TYPE_CHECKING, Any

import click

from isotach import roles, settings
from isotach.process import configure_logging, one_thread_each

if TYPE_CHECKING:
    from streams import Transport
    from streams.counters import Counters


@click.command("window", short_help="Telemetry into windows.")
@settings.options("window")
def command(**values: Any) -> None:
    """Turn telemetry into window features.

    Every process with the same Kafka and prefix shares the partitions of isotach.telemetry; kill one and the others
    take over from its first open window.
    """
    configure_logging(values["log_level"])
    one_thread_each()
    from isotach.job import run_job
    from streams.window import run_window_job

    def job(transport: "Transport", counters: "Counters", stop: threading.Event) -> None:
        run_window_job(
            transport,
            member=roles.member("window"),
            window_s=values["window_s"],
            lateness_s=values["lateness_s"],
            idle_s=values["idle_s"],
            max_skew_s=values["max_skew_s"],
            stop=stop,
            counters=counters,
        )

    run_job(values, "window", job)
