"""`isotach score`: the score job as a process of its own; one is active, the others stand by.

To change how a GPU is scored: `analytics/scoring.py`.
"""

from typing import Any

import click

from isotach import roles, settings
from isotach.process import Roles, configure_logging, one_thread_each, stop_on_signals


@click.command("score", short_help="Windows into scores.")
@settings.options("score")
def command(**values: Any) -> None:
    """Score every GPU against its peers, and publish scores and tier changes.

    Start two: the consumer group makes one active, and the other goes on within seconds if it dies.
    """
    configure_logging(values["log_level"])
    one_thread_each()
    from streams.counters import Counters
    from streams.score import run_score_job

    counters = Counters()
    limits = roles.thresholds(values)
    with stop_on_signals() as stop:
        transport = roles.kafka(values)
        try:
            with roles.metrics_of(values, counters):  # who answers there has found Kafka
                work = Roles(stop)
                work.start(
                    "score",
                    lambda stop: run_score_job(
                        transport,
                        member=roles.member("score"),
                        grace_s=values["grace_s"],
                        stop=stop,
                        counters=counters,
                        thresholds=limits,
                    ),
                )
                work.wait()
        finally:
            transport.close()
