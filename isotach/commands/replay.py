"""`isotach replay FILE...`: publish recorded telemetry again, at any speed, to Kafka or to a server.

To add a recording's format: `analytics/tabular.py`; for nvidia-smi captures: `collectors/nvidia_smi.py`.
"""

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from isotach import roles, settings
from isotach.process import Roles, configure_logging, one_thread_each, stop_on_signals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from analytics.table_file import RejectedRow
    from telemetry.records import SampleBatch


@click.command("replay", short_help="Publish a recording again.")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--rebase", type=click.Choice(("keep", "now")), default=None,
              help="keep the recorded times, or shift them to now. [default: now at speed 1, else keep]")  # fmt: skip
@click.option("--loop", is_flag=True, help="Begin again at the end.")
@settings.options("replay")
def command(files: tuple[Path, ...], rebase: Literal["keep", "now"] | None, loop: bool, **values: Any) -> None:
    """Publish FILES again: Parquet, CSV or NDJSON, one row a GPU and time.

    Columns are named as in docs/metrics.md, or as DCGM or nvidia-smi name them. `nvidia-smi -q -x` captures are
    published by `isotach agent --collector nvidia_smi --smi-file FILE`.
    """
    configure_logging(values["log_level"])
    one_thread_each()
    from prometheus_client import CollectorRegistry

    from collectors.agent import Agent
    from collectors.replay import Replay

    with stop_on_signals() as stop:
        producer = roles.producer(values)
        recording = Replay(
            batches=_Recording(files),
            speed=values["speed"] or None,
            rebase=rebase or ("now" if values["speed"] == 1 else "keep"),
            loop=loop,
        )
        agent = Agent(
            collectors={"replay": (recording, 0.0)},
            producer=producer,
            node=roles.node_name(values),
            registry=CollectorRegistry(),
        )
        try:
            work = Roles(stop)
            work.start("agent", agent.run)
            work.wait()
        finally:
            producer.close()


LOG = logging.getLogger("isotach.replay")


class _Recording:
    """The files one after the other; can be read again."""

    def __init__(self, files: tuple[Path, ...]) -> None:
        self._files = files

    def __iter__(self) -> "Iterator[SampleBatch]":
        from analytics.recorded import batches

        for file in self._files:
            yield from batches(file, report=partial(_tell, file))


def _tell(file: Path, row: "RejectedRow") -> None:
    LOG.warning("%s row %d is left out: %s: %s", file, row.row, row.rule, row.detail)
