"""Which nodes and GPUs a workload, fault or probe speaks of.

To select by something else: one field in `read_selector`, one line in `_matches`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Protocol

from collectors.simulated.noise import key
from collectors.simulated.section import Section


class Selectable(Protocol):
    """What a selector reads of a node."""

    @property
    def name(self) -> str: ...
    @property
    def site(self) -> str: ...
    @property
    def rack(self) -> str: ...
    @property
    def block(self) -> str | None: ...
    @property
    def model_name(self) -> str: ...
    @property
    def gpus(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """Shell-style patterns, all of which must fit; then `count` or `share` of the GPUs that fit, drawn by the seed."""

    site: tuple[str, ...] | None = None
    block: tuple[str, ...] | None = None
    rack: tuple[str, ...] | None = None
    node: tuple[str, ...] | None = None
    model: tuple[str, ...] | None = None
    gpu: tuple[str, ...] | None = None  #: "node/slot"
    slot: tuple[str, ...] | None = None
    count: int | None = None
    share: float | None = None

    def nodes(self, nodes: Sequence[Selectable]) -> list[int]:
        """Indices of the nodes that fit, by the node's own fields alone."""
        return [i for i, node in enumerate(nodes) if self._matches(node)]

    def gpus(self, nodes: Sequence[Selectable], *, draw: str) -> list[tuple[int, int]]:
        """(node index, slot) of the GPUs that fit, in fleet order; `draw` names the draw, so that two differ."""
        found = [
            (i, slot)
            for i in self.nodes(nodes)
            for slot in range(nodes[i].gpus)
            if _fits(self.slot, str(slot)) and _fits(self.gpu, f"{nodes[i].name}/{slot}")
        ]
        wanted = len(found)
        if self.share is not None:
            wanted = round(self.share * len(found))
        if self.count is not None:
            wanted = min(wanted, self.count)
        if wanted == len(found):
            return found
        drawn = sorted(found, key=lambda gpu: key(draw, nodes[gpu[0]].name, gpu[1]))[:wanted]
        return sorted(drawn)

    def _matches(self, node: Selectable) -> bool:
        return (
            _fits(self.site, node.site)
            and _fits(self.block, node.block or "")
            and _fits(self.rack, node.rack)
            and _fits(self.node, node.name)
            and _fits(self.model, node.model_name)
            and (self.gpu is None or any(fnmatchcase(node.name, one.rpartition("/")[0]) for one in self.gpu))
        )


def read_selector(section: Section) -> Selector:
    """The selector in the field `select`; absent selects everything."""
    inner = section.section("select")
    gpu = inner.texts("gpu")
    for pattern in gpu or ():
        if "/" not in pattern:
            raise inner.refuse("gpu", f"expected node/slot, got {pattern!r}")
    selector = Selector(
        site=inner.texts("site"),
        block=inner.texts("block"),
        rack=inner.texts("rack"),
        node=inner.texts("node"),
        model=inner.texts("model"),
        gpu=gpu,
        slot=inner.texts("slot"),
        count=inner.integer("count", 0, low=1, high=10**7) or None,
        share=inner.number("share", None, low=0.0, high=1.0),
    )
    inner.done()
    return selector


def _fits(patterns: tuple[str, ...] | None, text: str) -> bool:
    return patterns is None or any(fnmatchcase(text, pattern) for pattern in patterns)
