"""`isotach agent`: collect a node's GPU telemetry and publish it to Kafka, or to a server over HTTP.

To add a collector: see `collectors/__init__.py`; its settings are lines in `isotach/settings.py`.
"""

import threading
from collections.abc import Callable
from typing import Any

import click

from isotach import __version__, roles, settings
from isotach.process import Roles, be_nice, be_small, configure_logging, on_hangup, stop_on_signals
from isotach.service import Service
from telemetry.errors import SettingsError


@click.command("agent", short_help="Collect and publish.")
@settings.options("agent")
def command(**values: Any) -> None:
    """Collect this node's GPU telemetry and publish it.

    Sends to Kafka with --bootstrap, else to an Isotach server with --server. Needs no root and starts nothing on the
    node. SIGHUP reads the file of --config again. Example: isotach agent --collector nvidia_smi --bootstrap kafka:9092
    --place rack=r12
    """
    context = click.get_current_context()
    configure_logging(values["log_level"])
    be_nice(values["nice"])  # beside jobs that cost a thousand dollars an hour; before any thread is there
    service = Service.from_environment()
    from prometheus_client import CollectorRegistry

    from collectors.agent import Agent
    from collectors.self_metrics import serve
    from isotach.reload import Reload, manners

    found = roles.collectors(values, values["collector"])
    if not found:
        raise SettingsError(
            "nothing to collect from: neither NVML's library nor nvidia-smi is here; choose with --collector"
        )
    registry = CollectorRegistry()
    be_small()  # all is loaded, and no thread is there
    with on_hangup() as asked, stop_on_signals() as stop:
        spool = roles.spool(values)
        producer = roles.producer(values)
        agent = Agent(
            collectors=found,
            producer=producer,
            node=roles.node_name(values),
            batch_s=values["batch_s"],
            registry=registry,
            spool=spool,
            replay_speed=values["replay_speed"],
            manners=manners(values),
            start_spread_s=values["batch_s"],
            version=__version__,
        )
        metrics = None
        if values["metrics_port"]:
            metrics = serve(registry, host=values["metrics_host"], port=values["metrics_port"])
        again = Reload(values, read=lambda: settings.reread(context), upkeep=agent.upkeep, collectors=found)
        turn = _turn(service, asked, again, turns=lambda: agent.upkeep.turns, what=", ".join(found))
        try:
            work = Roles(stop)
            work.start("agent", agent.run)
            work.wait(turn, ending=service.stopping)
        finally:
            roles.let_go(producer, kept=spool is not None)
            service.close()
            if metrics is not None:
                metrics.close()


def _turn(
    service: Service, asked: threading.Event, again: Callable[[], str], *, turns: Callable[[], int], what: str
) -> Callable[[], None]:
    """What the main thread does twice a second: tell the service manager how it goes, read settings if asked."""
    began = False

    def turn() -> None:
        nonlocal began
        if not began and turns():
            began = True
            service.ready(f"collecting: {what}")
        service.alive(turns())
        if asked.is_set():
            asked.clear()
            service.reloading()
            service.ready(again())

    return turn
