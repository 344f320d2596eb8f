"""A whole site as an operator runs it: every role a process of its own, over a real broker, through kills and outages.

To add a disaster: one step in the test, and what must be the same afterwards.
"""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from polars.testing import assert_frame_equal
from support.kafka import Broker
from support.processes import Process, Processes, Server, free_port, processes
from support.undisturbed import Outcome, last_window_ns, outcome_of, same_windows, undisturbed

pytestmark = [
    pytest.mark.processes,
    pytest.mark.kafka,
    pytest.mark.xdist_group("site"),
    pytest.mark.timeout(600),
]

SECONDS, SPEED, SEED = 1_000, 10, 7
OUTAGE_S = 20.0
REPLICAS = ("replica-a", "replica-b")
# What the first agent to come back sends makes older samples of the others late: longer than the outage, at this speed.
WINDOW_S, LATENESS_S = 30.0, SPEED * (OUTAGE_S + 40)


class Site:
    """The processes of a site on one broker, each named; what they say is asked through its replicas."""

    def __init__(self, folder: Processes, broker: Broker, prefix: str, start: datetime) -> None:
        self.all = folder
        self.log = ("--bootstrap", broker.bootstrap, "--topic-prefix", prefix, "--telemetry-partitions", "4")
        self.session = ("--session-timeout-s", max(3.0, broker.shortest_session_s))
        self.start = start
        self.start_ns = int(start.timestamp()) * 10**9
        self.last_ns = last_window_ns(start_ns=self.start_ns, seconds=SECONDS, lateness_s=LATENESS_S, window_s=WINDOW_S)
        self.ports = {name: free_port() for name in REPLICAS}

    def window(self, name: str) -> Process:
        times = ("--window-s", WINDOW_S, "--lateness-s", LATENESS_S, "--idle-s", 3_600)
        return self.job(name, "window", *times)

    def score(self, name: str) -> Process:
        return self.job(name, "score")

    def job(self, name: str, role: str, *settings: object) -> Process:
        """A window or score process; `up` waits until it has found Kafka."""
        self.ports[name] = free_port()
        return self.all.start(name, role, *self.log, *self.session, "--metrics-port", self.ports[name], *settings)

    def up(self, *names: str) -> None:
        """Wait until these processes answer."""
        for name in names:
            server, path = self.server(name), "/readyz" if name in REPLICAS else "/metrics"
            self.all.until(partial(server.answers, path), f"{name} is up")

    def counts(self, name: str, metric: str) -> bool:
        """Whether a process has counted something of this name."""
        text = self.server(name).fetch("/metrics")[1].decode()
        found = [line for line in text.splitlines() if line.startswith(f"isotach_jobs_{metric}")]
        return any(float(line.split()[-1]) > 0 for line in found)

    def serve(self, name: str) -> Process:
        store = self.all.folder / f"{name}.duckdb"
        port = self.ports[name]
        return self.all.start(name, "serve", *self.log, "--store", store, "--port", port, "--stale-after-s", 86_400)

    def agent(self, shard: str) -> Process:
        fleet = ("--collector", "simulated", "--fleet", "small", "--seed", SEED, "--shard", shard)
        times = ("--start", self.start.isoformat(), "--speed", SPEED, "--duration-s", SECONDS)
        return self.all.start(f"agent-{shard[0]}", "agent", *self.log, *fleet, *times)

    def server(self, name: str) -> Server:
        return Server(self.ports[name])

    def windows_scored(self) -> int:
        """Start of the newest window that a replica has scores of."""
        body = self.server("replica-b").get("/v1/gpus?limit=1")
        if not body["items"]:
            return 0
        detail = self.server("replica-b").get("/v1/gpus/" + body["items"][0]["gpu_uuid"])
        return int(detail["score"]["window_start_ns"])

    def further(self, windows: int, what: str) -> None:
        """Wait until so many more windows have been scored, or all."""
        goal = min(self.windows_scored() + windows * int(WINDOW_S * 1e9), self.last_ns)
        self.all.until(lambda: self.windows_scored() >= goal, f"{windows} more windows scored after {what}")


@pytest.fixture
def site(tmp_path: Path, breakable_broker: Broker) -> Iterator[Site]:
    """A site of which nothing has been started."""
    start = datetime.fromtimestamp(int(time.time()) // 30 * 30 - SECONDS - 320, UTC)
    with processes(tmp_path) as all_of_them:
        yield Site(all_of_them, breakable_broker, f"chaos-{time.time_ns()}-", start)


def test_no_window_is_lost_or_doubled_through_kills_and_an_outage(site: Site, breakable_broker: Broker) -> None:
    """Windows and scores are those of an undisturbed run though processes of each role and the broker die meanwhile."""
    replicas = {name: site.serve(name) for name in REPLICAS}
    windows = [site.window("window-1"), site.window("window-2")]
    scorers = [site.score("score-1"), site.score("score-2")]
    site.up(*REPLICAS, "window-1", "window-2", "score-1", "score-2")
    agents = [site.agent(f"{i}/3") for i in range(3)]

    site.all.until(lambda: site.server("replica-b").total() == 96, "every GPU is known")
    windows[0].kill()  # before any window has closed
    windows.append(site.window("window-3"))
    site.up("window-3")
    site.all.until(lambda: site.counts("window-3", "messages_total"), "window-3 has partitions")
    breakable_broker.stop()
    time.sleep(OUTAGE_S)  # the disaster itself
    breakable_broker.start()
    site.all.until(lambda: site.windows_scored() > 0, "the first window is scored")
    next(one for one in scorers if site.counts(one.name, "scorer_active")).kill()
    replicas["replica-a"].kill()
    site.further(1, "the active scorer and a replica were killed")
    site.serve("replica-a")
    windows[1].kill()
    site.further(1, "a window process was killed")
    for agent in agents:
        assert agent.wait() == 0
    site.all.until(lambda: site.windows_scored() >= site.last_ns, "the last window is scored")
    site.up("replica-a")
    rankings = site.all.until(lambda: same_rankings(site), "both replicas give the same ranking")
    assert len(rankings["items"]) == 96

    expected = undisturbed(
        "small", start_ns=site.start_ns, seconds=SECONDS, seed=SEED, window_s=WINDOW_S, lateness_s=LATENESS_S
    )
    for name in REPLICAS:
        running = [one for one in site.all.running() if one.name == name]
        assert [one.stop() for one in running] == [0]
        same_outcome(outcome_of(site.all.folder / f"{name}.duckdb"), expected, site.last_ns)


def same_rankings(site: Site) -> dict[str, object] | None:
    """The ranking of every GPU once both replicas answer with the same bytes and the same tag."""
    first, second = (site.server(name).fetch("/v1/gpus?limit=0") for name in REPLICAS)
    return json.loads(first[1]) if first == second else None


def same_outcome(found: Outcome, expected: Outcome, last_ns: int) -> None:
    """Every row and column of every window, each GPU's speed and tier, and each change told once."""
    assert found.windows["window_start_ns"].max() == expected.windows["window_start_ns"].max() == last_ns
    same_windows(found.windows, expected.windows)
    columns = ["gpu_uuid", "tier", "speed", "speed_low", "speed_high", "workload_class", "evidence"]
    assert_frame_equal(found.scores.select(columns), expected.scores.select(columns), check_exact=True)
    changes = found.transitions.select("gpu_uuid", "to_tier", "time_ns")
    assert changes.is_unique().all(), "a change of tier was told twice"
    assert found.transitions["transition_id"].is_unique().all()
