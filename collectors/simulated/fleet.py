"""The description of a fleet, read from YAML and checked: sites > racks > nodes > slots, workloads, faults, probes.

To add a field: take it in `_read_site`, write it in docs/simulation.md. Built-in fleets lie beside this file.
"""

import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from collectors.simulated.fault import Fault
from collectors.simulated.models import MODELS, GpuModel, read_metrics, read_model
from collectors.simulated.nodes import Node
from collectors.simulated.probes import Probe, read_probe
from collectors.simulated.schedule import read_fault
from collectors.simulated.section import Section
from collectors.simulated.workloads import Job, Workload, jobs_of, read_workload
from telemetry.errors import SettingsError

MAX_NODES = 200_000
BUILT_IN = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """A whole fleet. `node_spread_c` is the spread of the inlet air between nodes of a rack."""

    name: str
    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...]
    faults: tuple[Fault, ...]
    probes: tuple[Probe, ...]
    node_spread_c: float


def load_fleet(fleet: Mapping[str, object] | Path | str, *, seed: int) -> Fleet:
    """The fleet from a description, a YAML file or a built-in name; raises SettingsError naming the field."""
    if isinstance(fleet, Mapping):
        return _read_fleet(Section(dict(fleet), "fleet"), seed)
    path = Path(fleet)
    if path.suffix not in (".yaml", ".yml"):
        path = BUILT_IN / f"{fleet}.yaml"
        if "/" in str(fleet) or not path.is_file():
            names = ", ".join(sorted(file.stem for file in BUILT_IN.glob("*.yaml")))
            raise SettingsError(f"fleet: no built-in fleet {str(fleet)!r} (there are {names}), and no .yaml file")
    try:
        description = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"fleet: cannot read {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"fleet: {path} is no YAML: {error}") from None
    return _read_fleet(Section(description, "fleet"), seed)


def _read_fleet(section: Section, seed: int) -> Fleet:
    name = section.text("name", "fleet")
    section.text("description", None)
    node_spread_c = section.number("node_spread_c", 1.0, low=0.0, high=20.0)
    models = dict(MODELS)
    for model_name, inner in section.named_sections("models"):
        models[model_name] = read_model(model_name, inner)
    nodes = tuple(node for site in section.sections("sites") for node in _read_site(site, models))
    if not nodes:
        raise section.refuse("sites", "the fleet has no node")
    if len(nodes) > MAX_NODES:
        raise section.refuse("sites", f"the fleet has {len(nodes)} nodes; at most {MAX_NODES}")
    seen: set[str] = set()
    for node in nodes:
        if node.name in seen:
            raise section.refuse("sites", f"two nodes are named {node.name!r}")
        seen.add(node.name)
    workloads: list[Workload] = [read_workload(inner) for inner in section.sections("workloads")]
    faults = tuple(read_fault(inner, nodes, i) for i, inner in enumerate(section.sections("faults")))
    names = [fault.name for fault in faults]
    for i, fault_name in enumerate(names):
        if fault_name in names[:i]:
            raise SettingsError(f"fleet.faults[{i}].name: {fault_name!r} is taken")
    probes = tuple(read_probe(inner, nodes) for inner in section.sections("probes"))
    section.done()
    jobs = jobs_of(workloads, nodes, seed=seed)
    return Fleet(name=name, nodes=nodes, jobs=jobs, faults=faults, probes=probes, node_spread_c=node_spread_c)


def _read_site(section: Section, models: Mapping[str, GpuModel]) -> Iterator[Node]:
    site = section.name("name")
    inlet_c = section.number("inlet_c", 24.0, low=-20.0, high=60.0)
    daily_c = section.number("daily_c", 1.5, low=0.0, high=20.0)
    peak_hour = section.number("peak_hour_utc", 14.0, low=0.0, high=24.0)
    rack_number = 0
    node_number = 0
    for racks in section.sections("racks"):
        pattern = racks.text("name", "{site}-r{i:02d}")
        block = racks.text("block", None)
        leaf = racks.text("leaf", None)
        offset_c = racks.number("inlet_offset_c", 0.0, low=-20.0, high=40.0)
        gradient_c = racks.number("gradient_c", 2.0, low=0.0, high=20.0)
        nvlink_domain = racks.flag("nvlink_domain", False)
        kinds = [_NodeKind(inner, models) for inner in racks.sections("nodes")]
        if not kinds:
            raise racks.refuse("nodes", "a rack needs nodes")
        total = sum(kind.count for kind in kinds)
        for i in range(1, racks.integer("count", 1, low=1, high=100_000) + 1):
            rack_number += 1
            names = {"site": site, "i": i, "n": rack_number}
            rack = _named(racks, "name", pattern, names)
            place = names | {"rack": rack}
            height = 0
            for kind in kinds:
                for j in range(1, kind.count + 1):
                    node_number += 1
                    height += 1
                    yield Node(
                        name=_named(
                            kind.section, "name", kind.pattern, place | {"i": height, "j": j, "n": node_number}
                        ),
                        site=site,
                        rack=rack,
                        block=None if block is None else _named(racks, "block", block, place),
                        leaf=None if leaf is None else _named(racks, "leaf", leaf, place),
                        model=kind.model,
                        gpus=kind.gpus,
                        metrics=kind.metrics,
                        fabric=f"{site}-{rack}.1" if nvlink_domain else None,
                        # Warm air rises: the top node's inlet is warmer by the whole gradient.
                        inlet_c=inlet_c + offset_c + gradient_c * ((height - 1) / max(1, total - 1) - 0.5),
                        daily_c=daily_c,
                        peak_hour=peak_hour,
                    )
        racks.done()
    section.done()


class _NodeKind:
    """A line of `nodes`: so many equal nodes."""

    def __init__(self, section: Section, models: Mapping[str, GpuModel]) -> None:
        self.section = section
        self.pattern = section.text("name", "{rack}-n{i:02d}")
        self.count = section.integer("count", 1, low=1, high=MAX_NODES)
        self.model = models[section.choice("model", "H100-SXM5-80GB", tuple(models))]
        self.gpus = section.integer("gpus", 8, low=1, high=72)
        self.metrics = read_metrics(section, self.model.metrics)
        section.done()


def _named(section: Section, field: str, pattern: str, names: Mapping[str, object]) -> str:
    try:
        return string.Formatter().vformat(pattern, (), names)
    except (KeyError, ValueError, IndexError, AttributeError, TypeError) as error:
        raise section.refuse(
            field, f"pattern {pattern!r} is wrong ({error}); names: {', '.join(sorted(names))}"
        ) from None
