"""Reading the faults of a description: who is struck, when, how hard, and what a right judge would say.

To add a field: take it in `read_fault`, write it in docs/simulation.md.
"""

import math
from collections.abc import Sequence

from collectors.simulated.fault import Fault
from collectors.simulated.faults import FAULTS, GOOD, WHOLE_NODE
from collectors.simulated.models import metric_names
from collectors.simulated.section import Section
from collectors.simulated.selector import Selectable, read_selector
from telemetry.tables import TIERS

HARDWARE_XIDS = frozenset({48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140})


def read_fault(section: Section, nodes: Sequence[Selectable], number: int) -> Fault:
    """A fault with its targets; raises SettingsError naming the field."""
    kind_name = section.choice("kind", "", tuple(FAULTS))
    kind = FAULTS[kind_name]
    name = section.text("name", f"{number}-{kind_name}")
    selector = read_selector(section)
    if kind_name in WHOLE_NODE and (selector.gpu or selector.slot):
        raise section.refuse("select", f"{kind_name} takes whole nodes: select nodes, racks or sites")
    targets = selector.gpus(nodes, draw=f"fault {name}")
    if kind_name in WHOLE_NODE:
        targets = [(node, slot) for node in sorted({node for node, _ in targets}) for slot in range(nodes[node].gpus)]
    if not targets:
        raise section.refuse("select", "no GPU is selected")
    start_s = section.number("start_s", 0.0, low=0.0, high=1e9)
    end_s = section.number("end_s", math.inf, low=0.0, high=1e9)
    if end_s <= start_s:
        raise section.refuse("end_s", "must be after start_s")
    size = section.number("size", kind.size, low=kind.low, high=kind.high)
    ramp_s = section.number("ramp_s", 3_600.0, low=1.0, high=1e9)
    tiers = section.texts("tiers")
    cause = section.text("cause", None)
    words = section.texts("metrics") or ()
    try:
        metrics = metric_names(words)
    except KeyError as error:
        raise section.refuse("metrics", f"no metric or group of metrics {error}") from None
    if bool(metrics) != (kind_name == "unsupported_metrics"):
        raise section.refuse("metrics", "goes with unsupported_metrics, which needs it")
    if unknown := set(tiers or ()) - set(TIERS):
        raise section.refuse("tiers", f"no tier {sorted(unknown)[0]!r}; one of {', '.join(TIERS)}")
    section.done()
    application = kind_name == "xid" and int(size) not in HARDWARE_XIDS
    return Fault(
        name=name,
        kind=kind_name,
        targets=tuple(targets),
        start_s=start_s,
        end_s=end_s,
        size=size,
        ramp_s=ramp_s,
        metrics=metrics,
        tiers=tiers or (GOOD if application else kind.tiers),
        causes=(cause,) if cause else ((None,) if application else kind.causes),
    )
