"""Fleets of the campaign: what is drawn for each seed, as descriptions that `collectors.simulated` reads.

To add a set: a function here that returns a description, one line in `benchmarks/campaign.py`.
"""

import random
from collections.abc import Sequence
from typing import Any

RACKS, NODES, SLOTS = 4, 8, 8
QUIET_ROOMS = 4  #: a day without faults is played on four times as many GPUs: it takes many to see one false demotion
START_S = 720.0  #: twelve windows before anything happens
Description = dict[str, Any]


def _fleet(
    name: str, workloads: Sequence[Description], faults: Sequence[Description], *, racks_of: int = RACKS
) -> Description:
    racks = [
        {
            "name": "r{i}",
            "count": racks_of,
            "block": "b1",
            "nodes": [{"name": "{rack}-n{i}", "count": NODES, "gpus": SLOTS}],
        }
    ]
    named = [{"name": f"{i}-{fault['kind']}"} | fault for i, fault in enumerate(faults)]
    return {
        "name": name,
        "sites": [{"name": "s", "racks": racks}],
        "workloads": list(workloads),
        "faults": named,
    }


def _work(rack: int, work_class: str = "compute", **more: Any) -> Description:
    return {"name": f"w{rack}", "class": work_class, "select": {"rack": f"r{rack}"}} | more


COMPUTE = (_work(1, job_nodes=4), _work(2, job_nodes=1), _work(3, synchronous=False), _work(4, job_nodes=8))
"""Synchronous jobs of four nodes, of one node, independent work, one job of a whole rack."""
VARIED = (_work(1, job_nodes=4), _work(2, "mixed", job_nodes=2), _work(3, synchronous=False), _work(4, "memory"))
"""Compute, mixed, independent compute, memory."""


def _gpus(chance: random.Random, count: int, *, racks: Sequence[int] = range(1, RACKS + 1)) -> list[str]:
    """GPUs on nodes of their own, as node/slot."""
    nodes = [f"r{rack}-n{node}" for rack in racks for node in range(1, NODES + 1)]
    return [f"{node}/{chance.randrange(SLOTS)}" for node in chance.sample(nodes, count)]


def slow(seed: int) -> Description:
    """Twenty-four GPUs of 256 lose about 1 to 10 % of their speed, each in one of four ways."""
    chance = random.Random(seed)
    faults = []
    for i, gpu in enumerate(_gpus(chance, 24)):
        loss = chance.uniform(0.01, 0.10)
        kind = ("slow_silicon", "drift", "low_clock", "power_cap")[i % 4]
        fault: Description = {"kind": kind, "select": {"gpu": gpu}, "start_s": START_S + chance.uniform(0, 120)}
        if kind == "low_clock":
            fault["size"] = 0.8 * (1 - loss)  # the typical clock under load is 0.8 of the highest
        elif kind == "power_cap":
            fault["size"] = 1 - 2.5 * loss  # dynamic power goes with the clock to the power 2 to 2.8
        else:
            fault["size"] = loss
        if kind == "drift":
            fault["ramp_s"] = 600.0
        faults.append(fault)
    return _fleet(f"slow-{seed}", COMPUTE, faults)


SINGLE = (
    "power_brake", "hw_slowdown", "cooling", "ecc_corrected_storm", "ecc_uncorrected", "row_remap_pending",
    "row_remap_failed", "xid", "fallen_off_bus", "silent_loss", "pcie_width", "pcie_gen", "pcie_replay_storm",
    "nvlink_errors", "frozen_values", "missing_samples",
)  # fmt: skip
WHOLE = ("fabric_fault", "noisy_neighbour", "clock_skew")
HARDWARE_XIDS = (48, 62, 64, 79, 95, 119, 120, 140)


def broken(seed: int) -> Description:
    """One GPU of each single kind, one node of each kind that takes a node, a node and a rack without cooling."""
    chance = random.Random(seed)
    nodes = [f"r{rack}-n{node}" for rack in (1, 2, 3) for node in range(1, NODES + 1)]
    chance.shuffle(nodes)
    faults: list[Description] = []
    for kind in SINGLE:
        fault: Description = {"kind": kind, "select": {"gpu": f"{nodes.pop()}/{chance.randrange(SLOTS)}"}}
        if kind == "xid":
            fault["size"] = chance.choice(HARDWARE_XIDS)
        if kind == "missing_samples":
            fault["size"] = 0.7
        faults.append(fault)
    faults += [{"kind": kind, "select": {"node": nodes.pop()}} for kind in WHOLE]
    faults.append({"kind": "rack_cooling", "select": {"node": nodes.pop()}, "size": 30.0, "name": "node_cooling"})
    faults.append({"kind": "rack_cooling", "select": {"rack": "r4"}, "size": 30.0, "name": "rack_cooling"})
    for fault in faults:
        fault["start_s"] = START_S + 60.0 * chance.randrange(3) + 17.0
    return _fleet(f"broken-{seed}", (*VARIED[:3], _work(4, job_nodes=4)), faults)


def storm(seed: int) -> Description:
    """Everything that looks like trouble and is none, all at once."""
    chance = random.Random(seed)
    reload, swap, late = chance.sample([f"r{rack}-n{node}" for rack in range(1, 5) for node in range(1, 9)], 3)
    faults: list[Description] = [
        {"kind": "room_warm", "size": 6.0},
        {"kind": "power_cap_flapping", "select": {"share": 0.5}},
        {"kind": "garbage_values", "select": {"share": 0.3}},
        {"kind": "missing_samples", "select": {"share": 0.2}, "size": 0.2},
        {"kind": "unsupported_metrics", "select": {"share": 0.1}, "metrics": ["sm_active_ratio", "pcie_replay_total"]},
        {"kind": "unsupported_metrics", "select": {"node": "r3-n[12]"}, "metrics": ["activity", "cycles"]},
        {"kind": "driver_reload", "select": {"node": reload}},
        {"kind": "gpu_swap", "select": {"gpu": f"{swap}/{chance.randrange(SLOTS)}"}},
        {"kind": "late_batches", "select": {"node": late}},
    ]
    faults += [{"kind": "xid", "select": {"share": 0.1}, "size": code} for code in (13, 31, 43, 45)]
    for fault in faults:
        fault["start_s"] = START_S + chance.uniform(0, 300)
    return _fleet(f"storm-{seed}", VARIED, faults)


def flood(seed: int) -> Description:
    """Two GPUs of five are set to lower clocks at once, as after a wrong command for the whole fleet."""
    fault = {
        "kind": "low_clock",
        "size": 0.7,
        "select": {"share": 0.4},
        "start_s": START_S + random.Random(seed).random(),
    }
    return _fleet(f"flood-{seed}", COMPUTE, [fault])


def quiet(seed: int) -> Description:
    """Nothing at all, for days: jobs of all shapes with pauses, rooms with a daily wave."""
    pauses = {"gap_every_s": 7_200, "gap_s": 600, "checkpoint_every_s": 1_800, "checkpoint_s": 60}
    rooms = [
        work | pauses | {"name": f"w{rack}", "select": {"rack": f"r{rack}"}}
        for rack in range(1, QUIET_ROOMS * RACKS + 1)
        for work in [VARIED[(rack - 1) % RACKS]]
    ]
    return _fleet(f"quiet-{seed}", rooms, (), racks_of=QUIET_ROOMS * RACKS)
