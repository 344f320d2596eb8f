"""`isotach up`: a small site without Kafka keeps what it has acknowledged, whatever happens to its process.

To cut it at another place: one more `kill`.
"""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from polars.testing import assert_frame_equal
from support.processes import Process, Processes, Server, free_port, processes
from support.simulated_run import fleet
from support.undisturbed import last_window_ns, outcome_of, same_windows, settled, undisturbed

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("site")]

TOKEN = "a-token-of-the-test"
SECONDS, SPEED, SEED = 400, 20, 5
WINDOW_S, LATENESS_S = 20.0, 30.0
FLEET = fleet(
    {"kind": "low_clock", "start_s": 60, "select": {"gpu": "n2/1"}},
    {"kind": "row_remap_failed", "start_s": 95, "select": {"gpu": "n3/2"}},
    nodes=6,
)


class Site:
    """A server with its store, and agents that post to it."""

    def __init__(self, all_of_them: Processes) -> None:
        self.all = all_of_them
        self.port = free_port()
        self.server = Server(self.port)
        self.store = all_of_them.folder / "s.duckdb"

    def up(self, name: str = "up", *, port: int | None = None) -> Process:
        times = ("--window-s", WINDOW_S, "--lateness-s", LATENESS_S, "--idle-s", 3_600, "--stale-after-s", 86_400)
        where = ("--store", self.store, "--port", port or self.port, "--telemetry-partitions", 2)
        return self.all.start(name, "up", *where, *times, "--collector", "none", environment={"ISOTACH_TOKEN": TOKEN})

    def agent(self, start: datetime, *, token: str = TOKEN) -> Process:
        description = self.all.folder / "fleet.yaml"
        description.write_text(json.dumps(FLEET))  # JSON is YAML
        simulated = ("--collector", "simulated", "--fleet", description, "--seed", SEED)
        times = ("--start", start.isoformat(), "--speed", SPEED, "--duration-s", SECONDS)
        return self.all.start(
            "agent", "agent", "--server", self.server.url, *simulated, *times, environment={"ISOTACH_TOKEN": token}
        )


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A site of which nothing has been started."""
    with processes(tmp_path) as all_of_them:
        yield Site(all_of_them)


def test_kill_9_loses_nothing_that_was_acknowledged(site: Site) -> None:
    """Twice killed in the middle of a window, it goes on: windows and scores are those of an undisturbed run."""
    start = datetime.fromtimestamp(int(time.time()) // 60 * 60 - SECONDS - 300, UTC)
    start_ns = int(start.timestamp()) * 10**9
    last_ns = last_window_ns(start_ns=start_ns, seconds=SECONDS, lateness_s=LATENESS_S, window_s=WINDOW_S)
    first = site.up()
    site.all.until(site.server.ready, "the server is ready")
    agent = site.agent(start)
    for windows in (2, 6):
        site.all.until(lambda n=windows: newest_window(site) >= start_ns + n * WINDOW_S * 1e9, f"{windows} windows")
        first.kill()
        first = site.up()
        site.all.until(site.server.ready, "it is ready again")
    assert agent.wait() == 0
    site.all.until(lambda: newest_window(site) >= last_ns, "the last window is scored")
    assert first.stop() == 0
    found = outcome_of(site.store)
    assert settled(found, last_ns)
    expected = undisturbed(
        FLEET, start_ns=start_ns, seconds=SECONDS, seed=SEED, window_s=WINDOW_S, lateness_s=LATENESS_S
    )
    same_windows(found.windows, expected.windows)
    columns = ["gpu_uuid", "tier", "speed", "speed_low", "speed_high", "workload_class", "evidence"]
    assert_frame_equal(found.scores.select(columns), expected.scores.select(columns), check_exact=True)
    assert found.transitions["transition_id"].is_unique().all()
    assert found.transitions.select("gpu_uuid", "to_tier", "time_ns").is_unique().all()
    assert sorted(found.scores["tier"].unique()) == ["degraded", "premium", "quarantine", "standard"]


def newest_window(site: Site) -> int:
    """Start of the newest window that has been scored; 0 while nobody answers."""
    try:
        rows = site.server.get("/v1/gpus?limit=1")["items"]
        if not rows:
            return 0
        return int(site.server.get("/v1/gpus/" + rows[0]["gpu_uuid"])["score"]["window_start_ns"])
    except OSError:
        return 0


def test_a_wrong_token_is_refused_in_one_clear_line(site: Site) -> None:
    """The agent says which setting is wrong, once, and shows neither token; nothing is taken."""
    server = site.up()
    site.all.until(site.server.ready, "the server is ready")
    agent = site.agent(datetime.now(UTC), token="another-token")
    site.all.until(lambda: "401" in agent.output, "it is refused")
    time.sleep(3)  # long enough for it to be said again
    lines = [line for line in agent.output.splitlines() if "401" in line]
    assert len(lines) == 1
    assert "token" in lines[0]
    assert "another-token" not in agent.output
    assert TOKEN not in agent.output + server.output
    assert site.server.total() == 0
    assert agent.stop() == 0


def test_a_second_server_on_the_same_store_is_refused(site: Site) -> None:
    """It says that the store is taken, ends with status 1, and the first goes on."""
    first = site.up()
    site.all.until(site.server.ready, "the server is ready")
    second = site.up("second", port=free_port())
    assert second.wait() == 1
    assert "open in another process" in second.output
    assert "Traceback" not in second.output
    assert first.alive
    assert site.server.ready()
    third = site.up("third")
    assert third.wait() == 1
    assert f"port {site.port} on 127.0.0.1 is in use" in third.output
    assert first.stop() == 0
