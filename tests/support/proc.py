"""A `/proc` in a folder: processes with their control groups, as Slurm, the kubelet and users make them.

To have another scheduler: a function that gives its path.
"""

import os
from pathlib import Path

from collectors.proc import HOST_NAMESPACE


def slurm(job: int, step: str = "step_0") -> str:
    """A process of a Slurm job, with version 2 of control groups."""
    return f"0::/system.slice/slurmstepd.scope/job_{job}/{step}/user/task_0\n"


def pod(uid: str) -> str:
    """A process of a pod, with containerd and the systemd driver."""
    name = f"kubepods-burstable-pod{uid.replace('-', '_')}"
    return f"0::/kubepods.slice/kubepods-burstable.slice/{name}.slice/cri-containerd-{'ab' * 32}.scope\n"


USER = "0::/user.slice/user-1000.slice/session-3.scope\n"
UID = "0d1f5c5e-93c1-4a66-8a40-2d0e38ab3f21"


class FakeProc:
    """The processes of a host, seen through a mount of its `/proc` until `own` says otherwise."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.start(1, "0::/init.scope\n")
        (root / "self").symlink_to("4242")  # our own number as the host counts

    def start(self, pid: int, cgroup: str | bytes) -> None:
        """A process with this control group."""
        folder = self.root / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup").write_bytes(cgroup.encode() if isinstance(cgroup, str) else cgroup)

    def end(self, *pids: int) -> None:
        """These are gone."""
        for pid in pids:
            (self.root / str(pid) / "cgroup").unlink()
            (self.root / str(pid)).rmdir()

    def own(self, namespace: str = HOST_NAMESPACE) -> None:
        """It is the `/proc` of our own PID namespace, which is this one."""
        folder = self.root / str(os.getpid()) / "ns"
        folder.mkdir(parents=True)
        (folder / "pid").symlink_to(namespace)
        (self.root / "self").unlink()
        (self.root / "self").symlink_to(str(os.getpid()))
