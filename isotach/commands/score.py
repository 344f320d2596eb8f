"""`isotach score`: the score job as a process of its own; one is active, the others stand by.

To change how a GPU is scored: `analytics/scoring.py`.
"""

import threading
from typing import TYPE_CHECKING, Any

import click

from isotach import roles, settings
from isotach.process import configure_logging, one_thread_each

if TYPE_CHECKING:
    from streams import Transport
    from streams.counters import Counters


@click.command("score", short_help="Windows into scores.")
@settings.options("score")
def command(**values: Any) -> None:
    """Score every GPU against its peers, and publish scores and tier changes.

    Start two: the consumer group makes one active, and the other goes on within seconds if it dies.
    """
    configure_logging(values["log_level"])
    one_thread_each()
    from isotach.job import run_job
    from streams.score import run_score_job

    limits, places = roles.thresholds(values), roles.places(values)

    def job(transport: "Transport", counters: "Counters", stop: threading.Event) -> None:
        run_score_job(
            transport,
            member=roles.member("score"),
            grace_s=values["grace_s"],
            stop=stop,
            counters=counters,
            thresholds=limits,
            places=places,
        )

    run_job(values, "score", job)
