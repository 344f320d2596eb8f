"""`isotach up`: everything in one process, without Kafka: for a site of up to some hundred nodes.

To add a part: `isotach/local.py`.
"""

from typing import Any

import click

from isotach import roles, settings
from isotach.process import Roles, configure_logging, one_thread_each, stop_on_signals


@click.command("up", short_help="Everything in one process.")
@settings.options("up")
def command(**values: Any) -> None:
    """Run collectors, jobs, store and API in one process, without Kafka.

    Agents elsewhere send with `isotach agent --server URL`. Stop it and start it again: scores, tiers and open windows
    go on where they were, from the store and its journal.
    """
    configure_logging(values["log_level"])
    one_thread_each()
    from isotach.local import Ingest, LocalSite
    from isotach.serving import Listener
    from isotach.site import application, housekeeping, variance

    limits, places = roles.thresholds(values), roles.places(values)
    with stop_on_signals() as stop:
        listener = Listener(host=values["host"], port=values["port"])
        with LocalSite(
            values["store"],
            window_s=values["window_s"],
            lateness_s=values["lateness_s"],
            idle_s=values["idle_s"],
            max_skew_s=values["max_skew_s"],
            grace_s=values["grace_s"],
            telemetry_partitions=values["telemetry_partitions"],
            thresholds=limits,
            places=places,
        ) as site:
            producer = site.transport.producer(client_id="up")
            app = application(
                values,
                site.store,
                site.caught_up,
                ingest=Ingest(producer),
                counters=[site.counters],
                places=places,
            )
            work = Roles(stop)
            site.start(work)
            work.start("housekeeping", housekeeping(values, site.store))
            work.start("variance", variance(site.store))
            found = roles.collectors(values, values["collector"])
            if found:
                work.start("agent", _agent(values, found, site.transport.producer(client_id="agent")))
            work.start("http", lambda stop: listener.serve(app, stop))
            click.echo(f"API on {listener.url}; store {values['store']}", err=True)
            work.wait()


def _agent(values: Any, found: Any, producer: Any) -> Any:
    from prometheus_client import CollectorRegistry

    from collectors.agent import Agent
    from collectors.upkeep import Manners

    agent = Agent(
        collectors=found,
        producer=producer,
        node=roles.node_name(values),
        batch_s=values["batch_s"],
        registry=CollectorRegistry(),
        manners=Manners(max_messages_per_s=values["max_messages_per_s"]),
    )
    return agent.run
