"""`isotach agent`: collect a node's GPU telemetry and publish it to Kafka, or to a server over HTTP.

To add a collector: see `collectors/__init__.py`; its settings are lines in `isotach/settings.py`.
"""

import os
from typing import Any

import click

from isotach import roles, settings
from isotach.process import Roles, configure_logging, stop_on_signals
from telemetry.errors import SettingsError


@click.command("agent", short_help="Collect and publish.")
@settings.options("agent")
def command(**values: Any) -> None:
    """Collect this node's GPU telemetry and publish it.

    Sends to Kafka with --bootstrap, else to an Isotach server with --server. Needs no root and starts nothing on the
    node. Example: isotach agent --collector nvidia_smi --bootstrap kafka:9092 --place rack=r12
    """
    configure_logging(values["log_level"])
    from prometheus_client import CollectorRegistry

    from collectors.agent import Agent
    from collectors.self_metrics import serve

    found = roles.collectors(values, values["collector"])
    if not found:
        raise SettingsError(
            "nothing to collect from: neither NVML's library nor nvidia-smi is here; choose with --collector"
        )
    registry = CollectorRegistry()
    with stop_on_signals() as stop:
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
        )
        metrics = None
        if values["metrics_port"]:
            metrics = serve(registry, host=values["metrics_host"], port=values["metrics_port"])
        os.nice(5)  # beside jobs that cost a thousand dollars an hour
        try:
            work = Roles(stop)
            work.start("agent", agent.run)
            work.wait()
        finally:
            roles.let_go(producer, kept=spool is not None)
            if metrics is not None:
                metrics.close()
