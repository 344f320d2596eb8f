"""Which exporters there are: addresses as given, or in a file as Prometheus has them (`file_sd`).

To find targets in another way: a class with `find`, as in `discovery.py`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from collectors.dcgm.fetch import Address, address_of
from telemetry.errors import SettingsError, SourceUnavailable

PORT = 9400  #: dcgm-exporter's own
PATH = "/metrics"
MAX_FILE = 32 << 20
MAX_TARGETS = 20_000
NODE_LABELS = ("node", "nodename", "kubernetes_node", "__meta_kubernetes_node_name")
"""Labels of a target in a file that name its node; else the exporter's own label does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An exporter. `node` is its name where the list of targets knows it, else its pages say it."""

    url: str
    node: str | None = None

    @property
    def address(self) -> Address:
        """What is connected to; the URL was checked when the target was made."""
        return address_of(self.url)

    @property
    def federated(self) -> bool:
        """Whether it is a Prometheus that holds the series of many nodes."""
        return self.address.path.partition("?")[0].rstrip("/").endswith("/federate")


class Source(Protocol):
    """Somewhere targets are listed."""

    def find(self) -> Sequence[Target]:
        """The targets now; may take a while. Raises SourceUnavailable when it cannot be said: the old ones stay."""
        ...


def target_of(
    text: str, *, scheme: str = "http", path: str = PATH, port: int = PORT, node: str | None = None
) -> Target:
    """A target from `host`, `host:port` or a URL; raises ValueError."""
    text = text.strip()
    if "://" not in text:
        if text.count(":") > 1 and not text.startswith("["):
            text = f"[{text}]"  # an IPv6 address by itself
        bare = text.rpartition("]")[2] if text.startswith("[") else text
        text = f"{scheme}://{text}" if ":" in bare else f"{scheme}://{text}:{port}"
    address = address_of(text)
    url = text if address.path != "/" else text.rstrip("/") + "/" + path.lstrip("/")
    address_of(url)
    return Target(url=url, node=node or None)


class Given:
    """Addresses from the settings."""

    def __init__(self, texts: Sequence[str]) -> None:
        try:
            self._targets = tuple(target_of(text) for text in texts)
        except ValueError as error:
            raise SettingsError(f"--dcgm-targets {error}; host:port, a URL, or a file .json, .yml, .yaml") from None

    def find(self) -> Sequence[Target]:
        """Always the same ones."""
        return self._targets


class File:
    """A file in Prometheus's format for `file_sd_configs`, JSON or YAML, read again when it has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._targets: tuple[Target, ...] = ()

    def find(self) -> Sequence[Target]:
        """The file's targets; raises SourceUnavailable that names what is wrong with it."""
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp != self._stamp:
                self._targets = tuple(_groups(self._path, _content(self._path)))
                self._stamp = stamp
        except OSError as error:
            raise SourceUnavailable(f"--dcgm-targets {self._path}: {error.strerror}") from None
        return self._targets


def _content(path: Path) -> object:
    with path.open("rb") as file:
        raw = file.read(MAX_FILE + 1)
    if len(raw) > MAX_FILE:
        raise SourceUnavailable(f"--dcgm-targets {path}: more than {MAX_FILE >> 20} MiB")
    try:
        if path.suffix == ".json":
            return json.loads(raw)
        import yaml

        try:
            return yaml.safe_load(raw)
        except yaml.YAMLError as error:
            raise SourceUnavailable(f"--dcgm-targets {path}: no YAML: {str(error).splitlines()[0]}") from None
    except (ValueError, RecursionError) as error:
        raise SourceUnavailable(f"--dcgm-targets {path}: cannot be read: {error}") from None


def _groups(path: Path, content: object) -> Sequence[Target]:
    found: dict[str, Target] = {}
    groups: list[Any] = content if isinstance(content, list) else [None]
    for number, group in enumerate(groups, start=1):
        wrong = f"--dcgm-targets {path}: entry {number}"
        if not isinstance(group, Mapping) or not isinstance(group.get("targets"), list):
            raise SourceUnavailable(f"{wrong}: expected {{targets: [host:port, ...], labels: {{...}}}}")
        given = group.get("labels") or {}
        labels = {str(k): str(v) for k, v in given.items()} if isinstance(given, Mapping) else {}
        node = next((labels[name] for name in NODE_LABELS if labels.get(name)), None)
        node = node if len(group["targets"]) == 1 else None  # one name for several exporters is no node's name
        for text in group["targets"]:
            scheme, metrics_path = labels.get("__scheme__", "http"), labels.get("__metrics_path__", PATH)
            try:
                target = target_of(str(text), scheme=scheme, path=metrics_path, node=node)
            except ValueError as error:
                raise SourceUnavailable(f"{wrong}: {error}") from None
            found.setdefault(target.url, target)
    if len(found) > MAX_TARGETS:
        raise SourceUnavailable(f"--dcgm-targets {path}: {len(found)} targets, more than {MAX_TARGETS}")
    return tuple(found.values())


def sources_of(texts: Sequence[str]) -> Sequence[Source]:
    """What `dcgm_targets` means: each text that ends like a file is one, the others are addresses."""
    files = [text for text in texts if "://" not in text and text.endswith((".json", ".yml", ".yaml"))]
    others = [text for text in texts if text not in files]
    return (*(File(Path(text)) for text in files), *((Given(others),) if others else ()))
