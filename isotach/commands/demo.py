"""`isotach demo`: a simulated fleet with known faults, ranked live until Ctrl-C. Needs no Kafka, no GPU, no files.

To change the fleet: `collectors/simulated/demo.yaml`.
"""

import sys
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from isotach import roles, settings
from isotach.process import Roles, configure_logging, one_thread_each, stop_on_signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Group

    from analytics.store import Store
    from isotach.answers import Answers

FLEET = "demo"
HISTORY_S = 2_400.0
WINDOW_S, LATENESS_S, IDLE_S = 30.0, 10.0, 30.0
BEST = 8


@click.command("demo", short_help="A simulated fleet, ranked live.")
@settings.options("demo")
def command(**values: Any) -> None:
    """Simulate a fleet with known faults and rank it live, until Ctrl-C.

    The forty minutes before now are made up for in half a minute; then the fleet follows the clock. --truth FILE writes what is
    really wrong with it, to compare.
    """
    configure_logging("warning" if values["log_level"] == "info" else values["log_level"])
    one_thread_each()
    from prometheus_client import CollectorRegistry

    from collectors.agent import Agent
    from isotach.answers import ServerAnswers
    from isotach.local import Ingest, LocalSite
    from isotach.serving import Listener
    from isotach.site import application

    wanted = {
        **values,
        "fleet": FLEET,
        "start": f"-{HISTORY_S:g}",
        "interval_s": 1.0,
        "batch_s": 10.0,
    }
    with stop_on_signals() as stop:
        listener = Listener(host="127.0.0.1", port=values["port"])
        with LocalSite(None, window_s=WINDOW_S, lateness_s=LATENESS_S, idle_s=IDLE_S) as site:
            app = application(
                {},
                site.store,
                site.caught_up,
                ingest=Ingest(site.transport.producer(client_id="post")),
                counters=[site.counters],
            )
            agent = Agent(
                collectors={"simulated": roles.simulated(wanted)},
                producer=site.transport.producer(client_id="agent"),
                node="demo",
                registry=CollectorRegistry(),
            )
            work = Roles(stop)
            site.start(work)
            work.start("agent", agent.run)
            work.start("http", lambda stop: listener.serve(app, stop))
            click.echo(
                f"Simulating forty minutes of a fleet with known faults. Page: {listener.url}/   Ctrl-C ends it."
            )
            _show(ServerAnswers(listener.url, None), listener.url, stop, lag_s=lambda: _lag_s(site.store))
            work.wait()


def _show(answers: "Answers", url: str, stop: threading.Event, *, lag_s: "Callable[[], float]") -> None:
    """The ranking, again whenever it is new: in place on a terminal, else once the past is made up for."""
    from rich.console import Console
    from rich.live import Live

    console = Console() if sys.stdout.isatty() else Console(width=150)
    if console.is_terminal:
        with Live(console=console, auto_refresh=False, transient=False) as live:
            while not stop.is_set():
                if (screen := _screen(answers, url)) is not None:
                    live.update(screen, refresh=True)
                stop.wait(1.0)
        return
    while not stop.wait(0.5):
        if lag_s() < 3 * (WINDOW_S + LATENESS_S) and (screen := _screen(answers, url)) is not None:
            console.print(screen)
            stop.wait()


def _lag_s(store: "Store") -> float:
    """How far the newest scored window ends before now."""
    newest = store.frame("SELECT max(window_start_ns) AS ns FROM scores")["ns"][0]
    return time.time() - (newest or 0) / 1e9 - WINDOW_S


def _get(answers: "Answers", path: str, **parameters: Any) -> Mapping[str, Any]:
    """The answer; nothing while the server is still starting."""
    from telemetry.errors import IsotachError

    try:
        found: Mapping[str, Any] = answers.get(path, parameters)
    except IsotachError:
        return {}
    return found


def _screen(answers: "Answers", url: str) -> "Group | None":
    from rich.console import Group
    from rich.text import Text

    from isotach.printing import table

    gpus, tiers = _get(answers, "/v1/gpus", limit=0), _get(answers, "/v1/tiers", limit=1)
    blocks = _get(answers, "/v1/blocks", level="rack", limit=4)
    if not gpus.get("items") or not tiers:
        return None
    items = gpus["items"]
    counts = ", ".join(f"{tier['count']} {tier['tier']}" for tier in tiers["items"] if tier["count"])
    return Group(
        Text(f"\nBest of {len(items)} GPUs as of {gpus['as_of']}: {counts}", style="bold"),
        table(items[:BEST], by="gpu"),
        Text("Not healthy", style="bold"),
        table([gpu for gpu in items if gpu["tier"] not in ("premium", "standard")], by="gpu"),
        Text("Racks, best first for a compute-bound synchronous job", style="bold"),
        table(blocks.get("items", []), by="rack"),
        Text(f"Page: {url}/   ranking: {url}/v1/gpus   why: isotach explain GPU --server {url}", style="dim"),
    )
