"""`isotach window`: the window job as a process of its own; run as many as the telemetry needs.

To change what a window holds: `analytics/features.py`.
"""

from typing import Any

import click

from isotach import roles, settings
from isotach.process import Roles, configure_logging, one_thread_each, stop_on_signals


@click.command("window", short_help="Telemetry into windows.")
@settings.options("window")
def command(**values: Any) -> None:
    """Turn telemetry into window features.

    Every process with the same Kafka and prefix shares the partitions of isotach.telemetry; kill one and the others
    take over from its first open window.
    """
    configure_logging(values["log_level"])
    one_thread_each()
    from streams.counters import Counters
    from streams.window import run_window_job

    counters = Counters()
    with stop_on_signals() as stop:
        transport = roles.kafka(values)
        try:
            with roles.metrics_of(values, counters):  # who answers there has found Kafka
                work = Roles(stop)
                work.start(
                    "window",
                    lambda stop: run_window_job(
                        transport,
                        member=roles.member("window"),
                        window_s=values["window_s"],
                        lateness_s=values["lateness_s"],
                        idle_s=values["idle_s"],
                        max_skew_s=values["max_skew_s"],
                        stop=stop,
                        counters=counters,
                    ),
                )
                work.wait()
        finally:
            transport.close()
