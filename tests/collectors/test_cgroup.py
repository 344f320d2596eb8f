"""Whose process it is, by its control group: Slurm and Kubernetes in all their spellings, users', and garbage."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.proc import UID, USER, pod, slurm

from collectors.cgroup import Owner, Unclear, owner

CAPTURES = Path(__file__).resolve().parents[1] / "data" / "cgroup"
UNDER = UID.replace("-", "_")
CONTAINER = "7d" * 32
STATIC = "3c5f2f5e7a4b1d9900aa11bb22cc33dd"

SLURM = {
    "version 2": "0::/system.slice/slurmstepd.scope/job_123/step_0/user/task_0\n",
    "the batch script": "0::/system.slice/slurmstepd.scope/job_123/step_batch/user/task_0\n",
    "a shell on the node": "0::/system.slice/slurmstepd.scope/job_123/step_extern/user/task_special\n",
    "several slurmd on a machine": "0::/system.slice/n001_slurmstepd.scope/job_123/step_0/user/task_2\n",
    "version 1": "11:memory:/slurm/uid_1000/job_123/step_0/task_0\n1:name=systemd:/system.slice/slurmd.service\n",
    "version 1 with several slurmd": "4:devices:/slurm_n001/uid_0/job_123/step_batch\n",
    "a hybrid": "4:devices:/slurm/uid_7/job_123/step_0\n1:name=systemd:/system.slice/slurmd.service\n0::/\n",
    "seen from another cgroup namespace": "0::/../../system.slice/slurmstepd.scope/job_123/step_0/user/task_0\n",
    "a job that is being cleaned up": "0::/system.slice/slurmstepd.scope/job_123 (deleted)\n",
    "slurmd in a container": f"0::/docker/{CONTAINER}/system.slice/slurmstepd.scope/job_123/step_0/user/task_0\n",
    "slurmd in a pod": pod(UID).strip() + "/system.slice/slurmstepd.scope/job_123/step_0/user/task_0\n",
    "a container of the job's own": f"0::/system.slice/slurmstepd.scope/job_123/step_0/user/task_0/{CONTAINER}\n",
}
KUBERNETES = {
    "burstable, systemd, containerd": pod(UID),
    "guaranteed": f"0::/kubepods.slice/kubepods-pod{UNDER}.slice/cri-containerd-{CONTAINER}.scope\n",
    "best effort, CRI-O": (
        f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UNDER}.slice/"
        f"crio-{CONTAINER}.scope/container\n"
    ),
    "cgroupfs": f"0::/kubepods/burstable/pod{UID}/{CONTAINER}\n",
    "cgroupfs, guaranteed, version 1": f"12:cpuset:/kubepods/pod{UID}/{CONTAINER}\n3:pids:/system.slice\n",
    "runtime and kubelet of two minds": (
        f"9:devices:/system.slice/containerd.service/kubepods-burstable-pod{UNDER}.slice:cri-containerd:{CONTAINER}\n"
    ),
    "the same without a slice": f"1:name=systemd:/k/containerd/kubepods-pod{UNDER}:cri-containerd:{CONTAINER}\n",
    "a node that is a container (kind)": (
        f"0::/docker/{CONTAINER}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
        f"kubelet-kubepods-burstable-pod{UNDER}.slice/cri-containerd-{CONTAINER}.scope\n"
    ),
    "seen from another cgroup namespace": f"0::/../../kubepods-burstable-pod{UNDER}.slice/cri-containerd-ab.scope\n",
}
NOBODY = {
    "a user's shell": USER,
    "the root": "0::/\n",
    "a service": "0::/system.slice/nvidia-dcgm.service\n",
    "slurmd itself": "0::/system.slice/slurmd.service\n",
    "slurmstepd itself": "0::/system.slice/slurmstepd.scope/system\n",
    "a container outside Kubernetes": f"0::/system.slice/docker-{CONTAINER}.scope\n",
    "a path that a user made": "0::/user.slice/user-1000.slice/user@1000.service/slurm/uid_0/job_9/step_0\n",
    "a user's own cluster": f"0::/user.slice/user-1000.slice/user@1000.service/kubepods/pod{UID}/{CONTAINER}\n",
    "a job of another scheduler": "0::/htcondor/job_77\n",
    "the kubelet": "0::/kubelet.slice/kubelet.service\n",
}


@pytest.mark.parametrize("text", SLURM.values(), ids=SLURM)
def test_slurm_s_jobs_are_known_by_number(text: str) -> None:
    """Whatever step, version and nesting: the raw job id, which members of arrays have of their own."""
    assert owner(text) == Owner(source="slurm", job_id="123")


@pytest.mark.parametrize("text", KUBERNETES.values(), ids=KUBERNETES)
def test_pods_are_known_by_uid(text: str) -> None:
    """Whatever driver, runtime and class of service: the UID with hyphens, as `kubectl` shows it."""
    assert owner(text) == Owner(source="kubernetes", job_id=UID)


def test_a_static_pod_has_a_hash_for_a_uid() -> None:
    """Pods of the kubelet's own manifests."""
    assert owner(f"0::/kubepods/burstable/pod{STATIC}/{CONTAINER}\n") == Owner(source="kubernetes", job_id=STATIC)


@pytest.mark.parametrize("text", NOBODY.values(), ids=NOBODY)
def test_what_is_no_job_is_none(text: str) -> None:
    """Services, shells, and paths that users can make up."""
    assert owner(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "nonsense",
        "0:/no/second/colon",
        "x::/system.slice",
        "0::relative",
        "0::/system.slice/slurmstepd.scope/job_12a/step_0\n",
        "0::/system.slice/slurmstepd.scope/job_99999999999/step_0\n",
        "4:devices:/slurm/uid_7/job_/step_0\n",
    ],
)
def test_what_cannot_be_read_is_not_taken_for_nobody(text: str) -> None:
    """No path at all, or one of Slurm's without a job's number."""
    with pytest.raises(Unclear):
        owner(text)


# fmt: off
PARTS = st.sampled_from([
    "", "..", "system.slice", "slurmstepd.scope", "n1_slurmstepd.scope", "slurm", "slurm_n1", "uid_0", "uid_",
    "job_7", "job_", "step_0", "system", "kubepods", "kubepods.slice", "burstable", f"pod{UID}",
    f"kubepods-pod{UNDER}.slice", "pod", "user.slice", "docker", CONTAINER, "job_7 (deleted)", "\ud7ff", "a" * 5_000,
])
# fmt: on
PATHS = st.lists(PARTS, max_size=80).map("/".join)
LINES = st.builds(
    "{}:{}:/{}".format, st.sampled_from(["0", "11", "x", ""]), st.sampled_from(["", "memory", ":"]), PATHS
)


@given(st.one_of(st.text(max_size=400), st.lists(LINES, max_size=20).map("\n".join)))
def test_no_text_is_too_strange(text: str) -> None:
    """An owner of a bounded, plain id, none, or a refusal that says so."""
    try:
        found = owner(text)
    except Unclear:
        return
    if found is not None:
        assert re.fullmatch(r"[0-9]{1,10}|[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", found.job_id)
        assert found.source in ("slurm", "kubernetes")


NOISE = st.lists(st.sampled_from(["0::/\n", "3:pids:/system.slice\n", "1:name=systemd:/init.scope\n"]), max_size=3)


@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**31),
    st.sampled_from(["step_0", "step_batch", "step_extern", "step_interactive", "step_4294967290"]),
    st.sampled_from(["", "n1_", "gpu-017.cluster_"]),
    st.booleans(),
    NOISE,
)
def test_every_job_of_slurm_is_read_back(
    job: int, uid: int, step: str, node: str, first: bool, noise: list[str]
) -> None:
    """Any job, user, step and node name, in either version, among other hierarchies."""
    v2 = f"0::/system.slice/{node}slurmstepd.scope/job_{job}/{step}/user/task_0\n"
    v1 = f"7:freezer:/slurm{node and '_' + node[:-1]}/uid_{uid}/job_{job}/{step}\n"
    assert owner("".join([*noise, v1 if first else v2])) == Owner(source="slurm", job_id=str(job))


@given(st.uuids(), st.sampled_from(["", "burstable", "besteffort"]), st.booleans(), NOISE)
def test_every_pod_is_read_back(uid: object, quality: str, systemd: bool, noise: list[str]) -> None:
    """Any UID and class of service, with either driver, among other hierarchies."""
    between = f"{quality}-" if quality else ""
    folder = f"/kubepods-{quality}.slice" if quality else ""
    line = (
        f"0::/kubepods.slice{folder}/kubepods-{between}pod{str(uid).replace('-', '_')}.slice/crio-{CONTAINER}.scope\n"
    )
    plain = f"0::/kubepods/{quality}/pod{uid}/{CONTAINER}\n"
    assert owner("".join([*noise, line if systemd else plain])) == Owner(source="kubernetes", job_id=str(uid))


@pytest.mark.parametrize(("name", "job"), [("slurm_22.05_v1_step.txt", "1"), ("slurm_22.05_v1_array_batch.txt", "5")])
def test_a_real_slurm_s_files_are_read(name: str, job: str) -> None:
    """Captured; the member of an array runs under its own number, and the name of the node is in the path."""
    assert owner((CAPTURES / name).read_text(encoding="ascii")) == Owner(source="slurm", job_id=job)


def test_the_fixtures_are_as_said() -> None:
    """What other tests build with."""
    assert owner(slurm(9)) == Owner(source="slurm", job_id="9")
