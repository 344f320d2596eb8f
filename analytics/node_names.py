"""Names of nodes that two sources write differently: `n1` and `n1.cluster.local` are one node, where that is sure.

To accept another difference: `short`.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

import polars as pl

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*\.?", re.ASCII)
_ADDRESS = re.compile(r"[0-9.]+", re.ASCII)


def short(name: str) -> str | None:
    """The host name without its domain, in lower case; None for what is none, such as an address."""
    if not _HOST.fullmatch(name) or _ADDRESS.fullmatch(name):
        return None
    return name.partition(".")[0].lower()


def meetings(told: Iterable[str], known: Iterable[str]) -> Mapping[str, str]:
    """For names in `told` that are not in `known`: the known name of the same node.

    The same node is meant when one of the two has no domain, and nobody else on either side has that host name: two
    domains are two nodes. Whoever is not sure to be met is left out.
    """
    told, known = dict.fromkeys(told), dict.fromkeys(known)
    strange = [name for name in told if name not in known]
    if not strange:
        return {}
    theirs, ours = _by_short(told), _by_short(known)
    met: dict[str, str] = {}
    for name in strange:
        host = short(name)
        if host is None or len(theirs[host]) != 1 or len(ours.get(host, ())) != 1:
            continue
        (other,) = ours[host]
        if "." not in name or "." not in other or name.rstrip(".").lower() == other.rstrip(".").lower():
            met[name] = other
    return met


def _by_short(names: Iterable[str]) -> dict[str, list[str]]:
    found = defaultdict(list)
    for name in names:
        if (host := short(name)) is not None:
            found[host].append(name)
    return found


def under_names_of(topology: pl.DataFrame, nodes: pl.Series) -> pl.DataFrame:
    """Rows of `topology` with nodes named as in `nodes`, where they meet; the others keep their names."""
    met = meetings(topology["node"].unique(maintain_order=True), nodes)
    return topology.with_columns(pl.col("node").replace(met)) if met else topology
