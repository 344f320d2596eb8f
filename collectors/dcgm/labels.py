"""What the labels of a series say: which GPU of which node, and which job runs there; in every dialect.

To read another label: a name in one of the tuples below.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from collectors.dcgm.fields import READ
from collectors.listing import normal_bus_id
from telemetry.errors import BadInput
from telemetry.tables import CLASSES

# Best first. dcgm-exporter renamed Hostname in May 2026; NVLink series have gpu_uuid and model_name; with its option
# for old names it says uuid, pod_name, pod_namespace, container_name.
HOSTNAMES = ("Hostname", "hostname")
UUIDS = ("UUID", "uuid", "gpu_uuid")
MODELS = ("modelName", "model_name")
# A Prometheus that scrapes an exporter in a pod keeps the labels of the exporter's own pod, and moves the others aside.
PODS = ("exported_pod", "pod", "pod_name")
NAMESPACES = ("exported_namespace", "namespace", "pod_namespace")
CONTAINERS = ("exported_container", "container", "container_name")
HPC_JOBS = ("hpc_job",)
WORKLOAD_CLASS = "isotach_workload_class"
OTHERS = ("nvlink", "nvswitch", "cpu", "cpucore")  #: series of a link, a switch, a CPU: totals of GPUs have none
NO_JOB = frozenset(("", "0", "none"))
LONGEST = 253  #: characters, of a node's name by DNS

_UUID = re.compile(r"GPU-[0-9A-Za-z-]{4,64}", re.ASCII)
_NODE = re.compile(r"[A-Za-z0-9][\w.:-]{0,252}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLabels:
    """A job on a GPU, as its series are labelled."""

    job_id: str
    source: str
    name: str | None
    namespace: str | None
    workload_class: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """What one set of labels says. `instance` is True for a MIG instance. `texts` are fields given as labels.

    `doubts` are the rules that parts of it break, which were left out for that.
    """

    node: str | None
    index: str
    uuid: str | None
    bus_id: str | None
    model: str | None
    instance: bool
    job: JobLabels | None
    texts: Mapping[str, str]
    doubts: tuple[str, ...]

    @property
    def key(self) -> str:
        """What all series of one physical GPU share: its UUID, else its bus id; its index names nobody elsewhere."""
        return self.uuid or self.bus_id or ""


def read_labels(pairs: Mapping[str, str]) -> Labels | None:
    """What these labels say; None if they speak of no GPU. Raises BadInput if nobody can say of which one."""
    if not pairs.keys().isdisjoint(OTHERS):
        return None
    doubts: list[str] = []
    uuid = _first(pairs, UUIDS)
    if uuid is not None and not _UUID.fullmatch(uuid):
        if not uuid.startswith("MIG-"):
            doubts.append("bad_uuid")
        uuid = None
    bus_id = normal_bus_id(pairs.get("pci_bus_id"))
    if uuid is None and bus_id is None:
        raise BadInput("no_gpu", "neither a UUID nor a PCI bus id")
    node = _first(pairs, HOSTNAMES)
    if node is not None and not _NODE.fullmatch(node):
        doubts.append("bad_hostname")
        node = None
    job = _job(pairs)
    if job is not None and pairs.get(WORKLOAD_CLASS, "") not in ("", *CLASSES):
        doubts.append("unknown_workload_class")
    return Labels(
        node=node,
        index=pairs.get("gpu", "")[:20],
        uuid=uuid,
        bus_id=bus_id,
        model=_first(pairs, MODELS),
        instance=bool(pairs.get("GPU_I_ID")),
        job=job,
        texts={name: value[:LONGEST] for name, value in pairs.items() if name in READ and value},
        doubts=tuple(doubts),
    )


def _job(pairs: Mapping[str, str]) -> JobLabels | None:
    given = pairs.get(WORKLOAD_CLASS, "")
    workload_class = given if given in CLASSES else None
    pod, namespace = _first(pairs, PODS), _first(pairs, NAMESPACES)
    # Without a job, a Prometheus in between leaves the labels of the exporter's own pod.
    if pod is not None and not ("exported_pod" not in pairs and "dcgm-exporter" in pod):
        return JobLabels(
            job_id=f"{namespace}/{pod}" if namespace else pod,
            source="kubernetes",
            name=_first(pairs, CONTAINERS),
            namespace=namespace,
            workload_class=workload_class,
        )
    hpc_job = _first(pairs, HPC_JOBS)
    if hpc_job is None or hpc_job.lower() in NO_JOB:
        return None
    return JobLabels(job_id=hpc_job, source="slurm", name=None, namespace=None, workload_class=workload_class)


def _first(pairs: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    for name in names:
        if pairs.get(name):
            return pairs[name][:LONGEST]
    return None
