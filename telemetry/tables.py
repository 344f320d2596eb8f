"""The published tables: every column once, read by jobs, store, API, documentation and tests.

To add a column: one nullable line at the end of its table, a migration in `analytics/migrations`, and whatever fills it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Merge = Literal["key", "first", "sum", "mean", "max", "min", "or", "last"]
ColumnType = Literal["string", "int64", "uint64", "uint32", "uint16", "float64", "float32", "bool", "json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a published table; `merge` says how two parts of one window row become one."""

    name: str
    type: ColumnType
    unit: str = ""
    nullable: bool = True
    merge: Merge = "first"
    help: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A published table: its grain in words, its key and its columns in order."""

    name: str
    grain: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in order."""
        return tuple(c.name for c in self.columns)


def _c(name: str, type: ColumnType, unit: str, help: str, *, merge: Merge = "first", null: bool = True) -> Column:  # noqa: A002
    return Column(name=name, type=type, unit=unit, nullable=null, merge=merge, help=help)


CLASSES: tuple[str, ...] = ("compute", "memory", "communication", "mixed")
"""Workload classes that are scored. An idle window has no class."""

TIERS: tuple[str, ...] = ("premium", "standard", "degraded", "quarantine", "unknown")
"""Health tiers. `unknown` means no fresh evidence: never ranked as healthy."""

ACTIONS: tuple[str, ...] = ("none", "watch", "reset", "drain", "repair")
"""Recommended actions, mildest first."""

# fmt: off
WINDOWS = Table(
    name="windows", grain="one row per gpu_uuid and window_start_ns", key=("gpu_uuid", "window_start_ns"),
    columns=(
        _c("gpu_uuid", "string", "", "UUID of the physical GPU.", merge="key", null=False),
        _c("window_start_ns", "int64", "ns UTC", "Start of the window, a multiple of its length.", merge="key", null=False),
        _c("window_s", "float32", "s", "Length of the window.", null=False),
        _c("node", "string", "", "Node that reported the samples.", null=False),
        _c("samples", "uint32", "samples", "Distinct sample times in the window.", merge="sum", null=False),
        _c("completeness_ratio", "float32", "ratio", "Samples received of those the collector's interval promises; above 1 is cut to 1.", merge="sum", null=False),
        _c("busy_samples", "uint32", "samples", "Samples in which the GPU was working.", merge="sum", null=False),
        _c("busy_ratio", "float32", "ratio", "busy_samples / samples with a known activity; null if activity is unknown.", merge="mean"),
        _c("workload_class", "string", "", "Class of the busy samples: compute, memory, communication, mixed; null when idle or unknown."),
        _c("effective_clock_mhz", "float32", "MHz", "Mean SM clock over busy samples: time under throttle counts.", merge="mean"),
        _c("clock_min_mhz", "float32", "MHz", "Lowest SM clock over busy samples.", merge="min"),
        _c("memory_clock_mhz", "float32", "MHz", "Mean memory clock over busy samples.", merge="mean"),
        _c("power_w", "float32", "W", "Mean board power over busy samples; over all samples when idle.", merge="mean"),
        _c("power_max_w", "float32", "W", "Highest board power.", merge="max"),
        _c("power_limit_w", "float32", "W", "Enforced power limit, the last one seen.", merge="last"),
        _c("temperature_c", "float32", "C", "Mean die temperature over busy samples; over all samples when idle.", merge="mean"),
        _c("temperature_max_c", "float32", "C", "Highest die temperature.", merge="max"),
        _c("memory_temperature_max_c", "float32", "C", "Highest memory temperature.", merge="max"),
        _c("utilization_ratio", "float32", "ratio", "Mean utilisation: graphics-engine activity where reported, else the coarse counter.", merge="mean"),
        _c("sm_active_ratio", "float32", "ratio", "Mean over busy samples.", merge="mean"),
        _c("tensor_active_ratio", "float32", "ratio", "Mean over busy samples.", merge="mean"),
        _c("dram_active_ratio", "float32", "ratio", "Mean over busy samples.", merge="mean"),
        _c("fp_active_ratio", "float32", "ratio", "Largest of the FP64, FP32, FP16 pipe means over busy samples.", merge="mean"),
        _c("nvlink_bytes_per_s", "float32", "bytes/s", "Mean NVLink traffic, both directions, over busy samples.", merge="mean"),
        _c("pcie_bytes_per_s", "float32", "bytes/s", "Mean PCIe traffic, both directions, over busy samples.", merge="mean"),
        _c("sw_power_cap_ratio", "float32", "ratio", "Share of busy samples with the software power cap active: normal at full load.", merge="mean"),
        _c("hw_slowdown_ratio", "float32", "ratio", "Share of samples with hardware slowdown active.", merge="mean"),
        _c("sw_thermal_ratio", "float32", "ratio", "Share of samples with software thermal slowdown active.", merge="mean"),
        _c("hw_thermal_ratio", "float32", "ratio", "Share of samples with hardware thermal slowdown active.", merge="mean"),
        _c("power_brake_ratio", "float32", "ratio", "Share of samples with the external power brake active.", merge="mean"),
        _c("power_throttle_s", "float32", "s", "Growth of the time under power cap or power violation in the window.", merge="sum"),
        _c("thermal_throttle_s", "float32", "s", "Growth of the time under software or hardware thermal slowdown.", merge="sum"),
        _c("brake_throttle_s", "float32", "s", "Growth of the time under the external power brake.", merge="sum"),
        _c("energy_j", "float32", "J", "Energy used in the window.", merge="sum"),
        _c("ecc_corrected", "float32", "errors", "Corrected ECC errors in the window.", merge="sum"),
        _c("ecc_uncorrected", "float32", "errors", "Uncorrected ECC errors in the window.", merge="sum"),
        _c("remapped_rows", "float32", "rows", "Rows remapped in the window, both kinds.", merge="sum"),
        _c("row_remap_pending", "bool", "", "A remap waits for a reset.", merge="max"),
        _c("row_remap_failed", "bool", "", "Remapping has failed.", merge="max"),
        _c("pcie_replays", "float32", "replays", "PCIe replays in the window.", merge="sum"),
        _c("pcie_link_gen", "float32", "generation", "Lowest PCIe generation over busy samples.", merge="min"),
        _c("pcie_link_width", "float32", "lanes", "Fewest PCIe lanes.", merge="min"),
        _c("nvlink_errors", "float32", "errors", "NVLink CRC, replay, recovery and symbol errors in the window.", merge="sum"),
        _c("counter_resets", "uint32", "resets", "Counters that fell back: a driver reload or a GPU reset.", merge="sum", null=False),
        _c("recovery_action", "float32", "code", "The driver's recovery action, the highest seen.", merge="max"),
        _c("distinct_readings", "uint32", "readings", "Distinct combinations of clock, power, temperature and activity; 1 over many samples means frozen values.", merge="sum", null=False),
        _c("rejected_values", "uint32", "values", "Values outside their valid range, made null.", merge="sum", null=False),
        _c("application_clocks_ratio", "float32", "ratio", "Share of busy samples with clocks held down by a clock setting: a cause in software.", merge="mean"),
        _c("delivery_delay_s", "float32", "s", "From a message's newest sample until the log took it in, the shortest of the window's messages; below 0 the node's clock is ahead.", merge="min"),
    ),
)

SCORES = Table(
    name="scores", grain="one row per gpu_uuid: the newest score", key=("gpu_uuid",),
    columns=(
        _c("gpu_uuid", "string", "", "UUID of the physical GPU.", null=False),
        _c("node", "string", "", "Node that last reported it."),
        _c("as_of_ns", "int64", "ns UTC", "End of the last window, or time of the last evidence, that this row includes.", null=False),
        _c("window_start_ns", "int64", "ns UTC", "Start of the last window applied: a window at or before it changes nothing.", null=False),
        _c("peer_group", "string", "", "Model, memory and power limit that this GPU is compared within."),
        _c("peers", "uint32", "GPUs", "GPUs in the peer group with evidence for the primary class, this one included.", null=False),
        _c("workload_class", "string", "", "Primary class: the one with the most evidence."),
        _c("speed", "float64", "ratio", "Throughput relative to the typical peer in the primary class; 1.00 is typical, 0.95 is 5 % slow; null without evidence."),
        _c("speed_low", "float64", "ratio", "Lower end of the 90 % interval."),
        _c("speed_high", "float64", "ratio", "Upper end of the 90 % interval."),
        _c("speeds", "json", "", "Per class: speed, low, high, samples, source (measurement, telemetry, both)."),
        _c("evidence", "uint32", "count", "Windows and measurements behind the primary speed.", null=False),
        _c("tier", "string", "", "premium, standard, degraded, quarantine or unknown.", null=False),
        _c("tier_since_ns", "int64", "ns UTC", "When this tier began.", null=False),
        _c("reasons", "json", "", "Reason codes with their numbers: a list of {code, value, limit, text}.", null=False),
        _c("cause", "string", "", "cooling, power, silicon, memory, link, noisy_neighbour, software, telemetry; null if none."),
        _c("action", "string", "", "Recommended action: none, watch, reset, drain, repair.", null=False),
        _c("state", "json", "", "What the scorer needs to go on from here; private, may change with a release."),
    ),
)

TRANSITIONS = Table(
    name="transitions", grain="one row per tier change of a gpu_uuid", key=("transition_id",),
    columns=(
        _c("transition_id", "string", "", "Derived from gpu_uuid, window, from and to: the same change has the same id however often it is computed.", null=False),
        _c("time_ns", "int64", "ns UTC", "End of the window, or time of the event, that caused it.", null=False),
        _c("gpu_uuid", "string", "", "UUID of the physical GPU.", null=False),
        _c("node", "string", "", "Node that last reported it."),
        _c("from_tier", "string", "", "Tier before; null for a GPU seen for the first time."),
        _c("to_tier", "string", "", "Tier after.", null=False),
        _c("reasons", "json", "", "Reason codes with their numbers.", null=False),
        _c("cause", "string", "", "Cause, if known."),
        _c("action", "string", "", "Recommended action.", null=False),
        _c("speed", "float64", "ratio", "Speed at the time."),
    ),
)

EVENTS = Table(
    name="events", grain="one row per event; equal (time_ns, node, gpu_uuid, kind, code) is the same event", key=("time_ns", "node", "gpu_uuid", "kind", "code"),
    columns=(
        _c("time_ns", "int64", "ns UTC", "When it happened at the source.", null=False),
        _c("node", "string", "", "Node it happened on.", null=False),
        _c("gpu_uuid", "string", "", "GPU it speaks of; empty for the whole node.", null=False),
        _c("kind", "string", "", "xid, gpu_lost, gpu_reset, driver_reload, new_gpu, collector_hang, collector_failed, clock_skew, missing_gpu, fabric_fault, operator_pin, operator_hold, operator_clear, breaker_reset.", null=False),
        _c("code", "int64", "", "XID or other code; of operator_pin the tier: 0 premium, 1 standard, 2 degraded, 3 quarantine, 4 unknown; 0 where the kind has none.", null=False),
        _c("detail", "string", "", "One line for a person."),
    ),
)

MEASUREMENTS = Table(
    name="measurements", grain="one row per result of a benchmark, probe or job", key=("time_ns", "scope", "subject", "name", "value"),
    columns=(
        _c("time_ns", "int64", "ns UTC", "When it was measured.", null=False),
        _c("scope", "string", "", "What it speaks of: gpu or node. Step times of synchronous jobs are node.", null=False),
        _c("subject", "string", "", "gpu_uuid or node name, by scope.", null=False),
        _c("node", "string", "", "Node it ran on, if known."),
        _c("name", "string", "", "What was measured, e.g. sgemm; only equal names are compared.", null=False),
        _c("workload_class", "string", "", "compute, memory, communication or mixed.", null=False),
        _c("value", "float64", "", "The result.", null=False),
        _c("unit", "string", "", "Its unit, for people.", null=False),
        _c("higher_is_better", "bool", "", "True for throughput, false for time.", null=False),
        _c("evidence", "json", "", "More columns of the source by name (clock, temperature, power of the run)."),
    ),
)

GPUS = Table(
    name="gpus", grain="one row per gpu_uuid: the newest inventory", key=("gpu_uuid",),
    columns=(
        _c("gpu_uuid", "string", "", "UUID of the physical GPU.", null=False),
        _c("node", "string", "", "Node it sits in.", null=False),
        _c("slot", "uint16", "", "Position in the node: platform module id, else PCI order. The slot that other nodes' neighbours share."),
        _c("bus_id", "string", "", "PCI bus id, normalised: 00000000:9b:00.0."),
        _c("model", "string", "", "Product name as the driver gives it."),
        _c("serial", "string", "", "Board serial number."),
        _c("driver_version", "string", "", "Driver version."),
        _c("memory_total_bytes", "uint64", "bytes", "Framebuffer size; null where memory is unified with the host's."),
        _c("power_limit_w", "float32", "W", "Power limit requested."),
        _c("power_limit_default_w", "float32", "W", "Power limit the board is made for."),
        _c("max_sm_clock_mhz", "uint16", "MHz", "Highest SM clock."),
        _c("max_memory_clock_mhz", "uint16", "MHz", "Highest memory clock."),
        _c("mig_enabled", "bool", "", "MIG mode; the physical GPU is scored all the same."),
        _c("fabric", "string", "", "NVLink domain, `<clusterUuid>.<cliqueId>`; null if there is none or it is not ready."),
        _c("seen_ns", "int64", "ns UTC", "When the inventory was taken.", null=False),
        _c("numa_node", "uint16", "", "NUMA node of the host that the GPU's PCIe slot belongs to."),
    ),
)

NODES = Table(
    name="nodes", grain="one row per node: the newest inventory", key=("node",),
    columns=(
        _c("node", "string", "", "Node name, as the scheduler knows it.", null=False),
        _c("expected_gpus", "uint16", "GPUs", "GPUs that should be there; null if nobody said."),
        _c("seen_gpus", "uint16", "GPUs", "GPUs that answered.", null=False),
        _c("driver_version", "string", "", "Driver version."),
        _c("agent_version", "string", "", "Version of the agent."),
        _c("place", "json", "", "Ordered list of [level, value], nearest first, as the node knows it.", null=False),
        _c("seen_ns", "int64", "ns UTC", "When the inventory was taken.", null=False),
    ),
)

TOPOLOGY = Table(
    name="topology", grain="one row per node and level", key=("node", "level"),
    columns=(
        _c("node", "string", "", "Node name.", null=False),
        _c("position", "uint16", "", "Order of the level, 0 nearest.", null=False),
        _c("level", "string", "", "nvlink_domain, rack, leaf, block, spine, site or a name of the source's own.", null=False),
        _c("value", "string", "", "Which one: opaque.", null=False),
        _c("source", "string", "", "Where it was read: file, slurm, topograph, kubernetes, inventory, fabric.", null=False),
    ),
)

BLOCKS = Table(
    name="blocks", grain="one row per level, value and workload class", key=("level", "value", "workload_class"),
    columns=(
        _c("level", "string", "", "Level of the topology; `node` and `fleet` are always there.", null=False),
        _c("value", "string", "", "Which block of that level.", null=False),
        _c("workload_class", "string", "", "Class that it is ranked for.", null=False),
        _c("rank", "uint32", "", "1 is the best of its level and class.", null=False),
        _c("gpus", "uint32", "GPUs", "GPUs in the block.", null=False),
        _c("healthy_gpus", "uint32", "GPUs", "GPUs neither quarantined nor unknown.", null=False),
        _c("nodes", "uint32", "nodes", "Nodes in the block.", null=False),
        _c("full_nodes", "uint32", "nodes", "Nodes all of whose GPUs are healthy.", null=False),
        _c("expected_slowdown", "float64", "ratio", "Expected slowdown of a synchronous job on the GPUs it would get: that of the slowest of them; null without a healthy GPU."),
        _c("slowest_gpu", "string", "", "The GPU that holds the block back."),
        _c("as_of_ns", "int64", "ns UTC", "Newest evidence included.", null=False),
    ),
)

VARIANCE = Table(
    name="variance", grain="one row per contest (scope, name, class, peer group) and level", key=("scope", "name", "workload_class", "peer_group", "level"),
    columns=(
        _c("scope", "string", "", "Whose results: gpu or node.", null=False),
        _c("name", "string", "", "What was measured.", null=False),
        _c("workload_class", "string", "", "compute, memory, communication or mixed.", null=False),
        _c("peer_group", "string", "", "Peer group of the GPUs; `-` if none of them has a score.", null=False),
        _c("level", "string", "", "site, block, rack (where every node has one), node, gpu, and run: what differs when the same GPU is measured again.", null=False),
        _c("position", "uint16", "", "Order of the level, 0 outermost.", null=False),
        _c("units", "uint32", "count", "Different ones at this level.", null=False),
        _c("variance", "float64", "", "Variance of log results that is this level's own; null where it cannot be told from another's."),
        _c("share", "float64", "ratio", "Its share of the sum over levels."),
        _c("share_low", "float64", "ratio", "Lower end of the 90 % interval."),
        _c("share_high", "float64", "ratio", "Upper end of the 90 % interval."),
        _c("nil", "bool", "", "True where the level has nothing of its own beyond what the levels inside it explain."),
        _c("note", "string", "", "What to make of the contest: says where only nodes differ, and their GPUs must not be ranked by it."),
        _c("as_of_ns", "int64", "ns UTC", "Newest result included.", null=False),
    ),
)

JOBS = Table(
    name="jobs", grain="one row per gpu_uuid, job_id and started_ns: what ran where, and when", key=("gpu_uuid", "job_id", "started_ns"),
    columns=(
        _c("gpu_uuid", "string", "", "UUID of the physical GPU.", null=False),
        _c("node", "string", "", "Node it sits in.", null=False),
        _c("job_id", "string", "", "The scheduler's name of the job: a Slurm job id; of Kubernetes `namespace/pod`, or a pod's UID.", null=False),
        _c("source", "string", "", "Whose name that is: slurm, kubernetes or other.", null=False),
        _c("name", "string", "", "Name for people: of the container, the job."),
        _c("namespace", "string", "", "Kubernetes namespace."),
        _c("workload_class", "string", "", "Class that the job's own label gives: compute, memory, communication, mixed; null if it gives none."),
        _c("started_ns", "int64", "ns UTC", "Start of the job on this GPU, or when it was first seen there.", null=False),
        _c("seen_ns", "int64", "ns UTC", "When it was last seen; of an ended one when it was found gone.", null=False),
        _c("ended", "bool", "", "True once it was found gone; one that is neither ended nor seen for half an hour is unknown.", null=False),
        _c("processes", "uint32", "processes", "Its processes on this GPU."),
        _c("memory_bytes", "uint64", "bytes", "Framebuffer that they hold."),
    ),
)
# fmt: on

TABLES: Mapping[str, Table] = MappingProxyType(
    {
        t.name: t
        for t in (WINDOWS, SCORES, TRANSITIONS, EVENTS, MEASUREMENTS, GPUS, NODES, TOPOLOGY, BLOCKS, VARIANCE, JOBS)
    }
)
"""Every published table by name."""
