"""Ten minutes of a node on which one GPU hangs, one is lost and one talks nonsense: NVML to tiers, in this process.

To let another GPU be sick: `SICK`, its tier and reasons in `VERDICTS`.
"""

import threading
import time
from dataclasses import replace
from pathlib import Path

import orjson
import polars as pl
import psutil
import pytest
from prometheus_client import CollectorRegistry
from support.jobs import eventually
from support.nvml import NvmlStub, gpu_uuid
from support.undisturbed import last_window_ns

from collectors import Reading
from collectors.agent import Agent
from collectors.nvml.collector import Nvml
from collectors.nvml.patience import Patience
from isotach.local import LocalSite
from isotach.process import Roles
from telemetry.errors import EndOfInput

SECOND = 10**9
TICKS, SICK_AT, LATENESS_S = 660, 120, 5.0
HANGING, LOST, GARBAGE = 3, 4, 5
WELL = (0, 1, 2, 6, 7)
VERDICTS = {
    HANGING: ("unknown", {"stale", "collector_trouble"}),
    LOST: ("quarantine", {"gpu_lost"}),
    GARBAGE: ("unknown", {"stale", "collector_trouble"}),
}
PATIENCE = Patience(late_s=1.5, tick_s=20.0, reopen_s=3.0, hang_s=2.0, retry_s=(0.3, 1.5), settle=10**6)


class Hurried:
    """The collector asked as fast as it answers, its readings stamped as if a second lay between them."""

    def __init__(self, nvml: NvmlStub, start_ns: int) -> None:
        self.stub = nvml
        self.start_ns = start_ns
        self.tick = 0
        self.children: set[int] = set()
        self.most_at_once = 0
        self.memory: list[int] = []
        self._one = Nvml(
            node="n1", patience=PATIENCE, environment=nvml.environment, kernel_log=nvml.folder / "no-kernel-log"
        )

    def collect(self) -> Reading:
        """The next second."""
        if self.tick == TICKS:
            raise EndOfInput
        if self.tick == SICK_AT:
            self.stub.garble(GARBAGE).set(HANGING, hang="all").set(LOST, fail=15)
        now_ns = self.start_ns + self.tick * SECOND
        reading = self._one.collect()
        self.tick += 1
        self.children |= set(self._one.pids)
        self.most_at_once = max(self.most_at_once, len(self._one.pids))
        if self.tick in (TICKS // 3, TICKS):
            self.memory.append(max(psutil.Process(pid).memory_info().rss for pid in self._one.pids))
        return Reading(
            samples=[replace(batch, time_ns=[now_ns] * len(batch)) for batch in reading.samples],
            inventory=[replace(inventory, seen_ns=now_ns) for inventory in reading.inventory],
            events=[replace(event, time_ns=now_ns + place) for place, event in enumerate(reading.events)],
            rejected=reading.rejected,
        )

    def close(self) -> None:
        """End its children."""
        self._one.close()


@pytest.mark.xdist_group("site")
def test_five_well_gpus_keep_every_sample_for_ten_minutes(nvml: NvmlStub, tmp_path: Path) -> None:
    """Nothing of five GPUs is missing while three are sick; each has its tier and reason, and few processes."""
    window_ns = 60 * SECOND
    start_ns = (time.time_ns() - 2 * TICKS * SECOND) // window_ns * window_ns
    last_ns = last_window_ns(start_ns=start_ns, seconds=TICKS, lateness_s=LATENESS_S, window_s=60.0)
    hurried = Hurried(nvml, start_ns)
    began = time.monotonic()
    with LocalSite(None, window_s=60.0, lateness_s=LATENESS_S, idle_s=86_400.0, telemetry_partitions=1) as site:
        roles = Roles(threading.Event())
        site.start(roles)
        producer = site.transport.producer(client_id="agent")
        agent = Agent(collectors={"nvml": (hurried, 0.0)}, producer=producer, node="n1", registry=CollectorRegistry())
        try:
            agent.run(threading.Event())
            took_s = time.monotonic() - began
            producer.close()
            eventually(lambda: site.store.table("scores")["window_start_ns"].max() == last_ns, "the last window")
        finally:
            roles.stop.set()
            roles.join()
        windows, scores = site.store.table("windows"), site.store.table("scores")
        transitions = site.store.table("transitions")
    well = windows.filter(pl.col("gpu_uuid").is_in([gpu_uuid(place) for place in WELL]))
    assert well.height == len(WELL) * ((last_ns - start_ns) // window_ns + 1)
    assert well["completeness_ratio"].unique().to_list() == [1.0]
    found = {
        row["gpu_uuid"]: (row["tier"], {reason["code"] for reason in orjson.loads(row["reasons"])})
        for row in scores.iter_rows(named=True)
    }
    assert {found[gpu_uuid(place)][0] for place in WELL} <= {"standard", "premium"}
    for place, (tier, reasons) in VERDICTS.items():
        assert found[gpu_uuid(place)][0] == tier
        assert reasons <= found[gpu_uuid(place)][1]
    moved = set(transitions.filter(pl.col("to_tier") != "premium").select("gpu_uuid", "to_tier").iter_rows())
    assert moved == {(gpu_uuid(place), tier) for place, (tier, _) in VERDICTS.items()}
    early, late = hurried.memory
    assert late <= early + 1_000_000
    assert hurried.most_at_once <= 7  # the five's, one for each of the sick, and what is just being killed or replaced
    assert len(hurried.children) <= 12 + 3 * took_s / PATIENCE.retry_s[1]  # each is tried again with back-off
    assert not any(psutil.pid_exists(pid) for pid in hurried.children)
