"""Names of pods by UID, as the kubelet names the folders of their logs: NAMESPACE_NAME_UID, for everyone to list.

To learn names in another way: another class with `names`.
"""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

POD_LOGS = Path("/var/log/pods")
MOST = 10_000  #: folders that are looked at: a node has 250 pods at most by Kubernetes' own advice, and old ones
_FOLDER = re.compile(r"([a-z0-9][a-z0-9-]{0,62})_([a-z0-9][a-z0-9.-]{0,252})_([0-9a-f-]{32,36})", re.ASCII)


class Pods:
    """Names of this node's pods. One that was known keeps its name until nobody asks for it any more."""

    def __init__(self, folder: Path = POD_LOGS) -> None:
        self._folder = folder
        self._known: dict[str, tuple[str, str] | None] = {}

    def names(self, uids: Iterable[str]) -> Mapping[str, tuple[str, str] | None]:
        """Namespace and name of each pod; None where the folder does not say, also if it says so later.

        A pod is called by one name from its first process to its last.
        """
        wanted = set(uids)
        fresh = self._listed() if wanted - self._known.keys() else {}
        self._known = {uid: self._known[uid] if uid in self._known else fresh.get(uid) for uid in wanted}
        return self._known

    def _listed(self) -> dict[str, tuple[str, str]]:
        found: dict[str, tuple[str, str]] = {}
        try:
            with os.scandir(self._folder) as entries:
                for entry, _ in zip(entries, range(MOST), strict=False):
                    if match := _FOLDER.fullmatch(entry.name):
                        found[match[3]] = (match[1], match[2])
        except OSError:
            return {}
        return found
