"""Benchmark probes on a schedule: what a GPU measures when it runs a known kernel alone.

To add a probe: `probes:` in the fleet's description; nothing here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from collectors.simulated.section import Section
from collectors.simulated.selector import Selectable, Selector, read_selector
from collectors.simulated.workloads import CLASSES


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A kernel run on each selected GPU at `at_s`, then every `every_s`; `value` is what the typical GPU gets.

    `noise` is the spread of one GPU's runs: 0.13 % is the median of repeated SGEMM runs on Longhorn.
    """

    name: str
    selector: Selector
    work_class: str
    value: float
    unit: str
    higher_is_better: bool
    at_s: float
    every_s: float
    noise: float


def read_probe(section: Section, nodes: Sequence[Selectable]) -> Probe:
    """A probe; raises SettingsError naming the field."""
    selector = read_selector(section)
    probe = Probe(
        name=section.name("name"),
        selector=selector,
        work_class=section.choice("class", "compute", tuple(CLASSES)),
        value=section.number("value", 1.0, low=1e-9, high=1e18),
        unit=section.text("unit", "ratio"),
        higher_is_better=section.flag("higher_is_better", True),
        at_s=section.number("at_s", 0.0, low=0.0, high=1e9),
        every_s=section.number("every_s", 0.0, low=0.0, high=1e9),
        noise=section.number("noise", 0.0013, low=0.0, high=0.5),
    )
    if not selector.nodes(nodes):
        raise section.refuse("select", "no node is selected")
    section.done()
    return probe
