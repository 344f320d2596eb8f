"""`isotach serve`: an API replica: a store of its own, fed from Kafka, served over HTTP.

To add an endpoint: see `api/__init__.py`.
"""

import threading
from typing import Any

import click

from isotach import roles, settings
from isotach.process import Roles, configure_logging, one_thread_each, stop_on_signals


@click.command("serve", short_help="The HTTP API.")
@settings.options("serve")
def command(**values: Any) -> None:
    """Serve rankings over HTTP from a DuckDB store that follows Kafka.

    Replicas are stateless: delete the store and it is built again from the log. /readyz says what it waits for; while
    Kafka is away at the start, what the store has is served, and posts are refused.
    """
    configure_logging(values["log_level"])
    one_thread_each()
    from analytics.store import Store
    from isotach.connecting import Connection
    from isotach.local import Ingest
    from isotach.serving import Listener
    from isotach.site import application, housekeeping, variance
    from streams.counters import Counters
    from streams.late import LateProducer
    from streams.materialise import CaughtUp, run_materialiser

    places = roles.places(values)
    member = roles.member("serve")
    with stop_on_signals() as stop:
        listener = Listener(host=values["host"], port=values["port"])
        kafka = Connection(values)
        store = Store(values["store"])
        caught_up, counters = CaughtUp(), Counters()
        producer = LateProducer(lambda: kafka.transport().producer(client_id=member))
        app = application(values, store, caught_up, ingest=Ingest(producer), counters=[counters], places=places)

        def materialise(stop: threading.Event) -> None:
            transport = kafka.wait(stop)
            if transport is not None:
                run_materialiser(transport, store, member=member, stop=stop, caught_up=caught_up, counters=counters)

        work = Roles(stop)
        work.start("materialiser", materialise)
        work.start("housekeeping", housekeeping(values, store))
        work.start("variance", variance(store))
        work.start("http", lambda stop: listener.serve(app, stop))
        click.echo(f"API on {listener.url}", err=True)
        try:
            work.wait()
        finally:
            producer.close()
            kafka.close()
            store.close()
