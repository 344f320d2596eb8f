"""What the fleet is asked to do: workloads made of jobs, jobs made of steps, steps made of phases.

To add a phase: one line in `PHASES`; a class of work: one line in `CLASSES`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from collectors.simulated.noise import key
from collectors.simulated.section import Section
from collectors.simulated.selector import Selectable, Selector, read_selector
from telemetry.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What a typical GPU does in one phase of a step: ratios of its best; `power` relative to dense matrix products."""

    power: float
    engine: float
    sm: float
    occupancy: float = 0.0
    tensor: float = 0.0
    dram: float = 0.0
    fp64: float = 0.0
    fp32: float = 0.0
    fp16: float = 0.0
    nvlink: float = 0.0
    pcie: float = 0.0


PHASES: Mapping[str, Phase] = MappingProxyType(
    {
        "none": Phase(power=0.0, engine=0.0, sm=0.0),
        "compute": Phase(
            power=1.0,
            engine=1.0,
            sm=0.97,
            occupancy=0.22,
            tensor=0.72,
            dram=0.34,
            fp32=0.10,
            fp16=0.06,
            nvlink=0.02,
            pcie=0.01,
        ),
        "memory": Phase(
            power=0.66, engine=1.0, sm=0.90, occupancy=0.55, tensor=0.04, dram=0.88, fp32=0.14, fp16=0.03, pcie=0.01
        ),
        "communication": Phase(
            power=0.46, engine=1.0, sm=0.72, occupancy=0.10, tensor=0.02, dram=0.30, fp32=0.02, nvlink=0.62, pcie=0.12
        ),
        "input": Phase(power=0.10, engine=0.10, sm=0.08, occupancy=0.02, dram=0.03, pcie=0.35),
        "checkpoint": Phase(power=0.06, engine=0.04, sm=0.03, dram=0.05, pcie=0.55),
        "gap": Phase(power=0.03, engine=0.0, sm=0.0),
    }
)
PHASE_NAMES = tuple(PHASES)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkClass:
    """A class of work: its phases and their shares of a step, and what its speed depends on.

    `clock_share` is the part of its time that falls with the SM clock, so that log time falls with log clock at that
    slope near the typical clock; the weights say how far a GPU's own silicon, memory and links matter.
    """

    steps: tuple[tuple[str, float], ...]
    clock_share: float
    silicon: float
    memory: float
    link: float


CLASSES: Mapping[str, WorkClass] = MappingProxyType(
    {
        # Slope -0.976 of log SGEMM time on log clock: the Longhorn measurements of Sinha et al., SC 2022.
        "compute": WorkClass(
            steps=(("compute", 0.93), ("communication", 0.05), ("memory", 0.02)),
            clock_share=0.976,
            silicon=1.0,
            memory=0.0,
            link=0.0,
        ),
        "memory": WorkClass(
            steps=(("memory", 0.90), ("compute", 0.06), ("communication", 0.04)),
            clock_share=0.25,
            silicon=0.1,
            memory=0.9,
            link=0.0,
        ),
        "communication": WorkClass(
            steps=(("communication", 0.80), ("compute", 0.12), ("memory", 0.08)),
            clock_share=0.10,
            silicon=0.1,
            memory=0.2,
            link=0.7,
        ),
        "mixed": WorkClass(
            steps=(("compute", 0.45), ("memory", 0.30), ("communication", 0.25)),
            clock_share=0.60,
            silicon=0.5,
            memory=0.3,
            link=0.2,
        ),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One line of the description: jobs of one kind on the selected nodes, `job_nodes` nodes a job.

    The GPUs of a synchronous job go at the pace of the slowest. `utilization` is the share of a step that is not
    waiting for input. Seconds count from the fleet's start.
    """

    name: str
    selector: Selector
    work_class: str
    job_nodes: int | None
    synchronous: bool
    utilization: float
    step_s: float
    start_s: float
    end_s: float
    gap_every_s: float
    gap_s: float
    checkpoint_every_s: float
    checkpoint_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job: its nodes by index, and a key that sets its place in its first step."""

    workload: Workload
    key: int
    nodes: tuple[int, ...]


def read_workload(section: Section) -> Workload:
    """A workload; raises SettingsError naming the field."""
    workload = Workload(
        name=section.name("name"),
        selector=read_selector(section),
        work_class=section.choice("class", "compute", tuple(CLASSES)),
        job_nodes=section.integer("job_nodes", 0, low=1, high=10**6) or None,
        synchronous=section.flag("synchronous", True),
        utilization=section.number("utilization", 0.97, low=0.01, high=1.0),
        step_s=section.number("step_s", 12.0, low=0.1, high=3_600.0),
        start_s=section.number("start_s", 0.0, low=0.0, high=1e9),
        end_s=section.number("end_s", float("inf"), low=0.0, high=1e9),
        gap_every_s=section.number("gap_every_s", 0.0, low=0.0, high=1e9),
        gap_s=section.number("gap_s", 0.0, low=0.0, high=1e9),
        checkpoint_every_s=section.number("checkpoint_every_s", 0.0, low=0.0, high=1e9),
        checkpoint_s=section.number("checkpoint_s", 0.0, low=0.0, high=1e9),
    )
    if workload.end_s <= workload.start_s:
        raise section.refuse("end_s", "must be after start_s")
    if workload.gap_every_s and workload.gap_s >= workload.gap_every_s:
        raise section.refuse("gap_s", "must be shorter than gap_every_s")
    if workload.checkpoint_every_s and workload.checkpoint_s >= workload.checkpoint_every_s:
        raise section.refuse("checkpoint_s", "must be shorter than checkpoint_every_s")
    chosen = workload.selector
    if chosen.count is not None or chosen.share is not None or chosen.gpu is not None or chosen.slot is not None:
        raise section.refuse("select", "a workload takes whole nodes: select by site, block, rack, node or model")
    section.done()
    return workload


def jobs_of(workloads: Sequence[Workload], nodes: Sequence[Selectable], *, seed: int) -> tuple[Job, ...]:
    """Every job of the fleet, in the order of the description; raises SettingsError where two share a node and time."""
    jobs: list[Job] = []
    taken: dict[int, list[Workload]] = {}
    for workload in workloads:
        chosen = workload.selector.nodes(nodes)
        if not chosen:
            raise SettingsError(f"workload {workload.name}: no node is selected")
        size = workload.job_nodes or len(chosen)
        for at in range(0, len(chosen), size):
            jobs.append(
                Job(
                    workload=workload,
                    key=key(seed, "job", workload.name, at // size),
                    nodes=tuple(chosen[at : at + size]),
                )
            )
        for node in chosen:
            for other in taken.setdefault(node, []):
                if other.start_s < workload.end_s and workload.start_s < other.end_s:
                    raise SettingsError(
                        f"workloads {other.name} and {workload.name} both want node {nodes[node].name} at one time"
                    )
            taken[node].append(workload)
    return tuple(jobs)
