"""`nvidia-smi -q -x`: its XML as a listing, whatever the driver's version called its tags.

To accept another name of a clock event reason: one line in `_REASONS`.
"""

from collections.abc import Mapping
from xml.etree import ElementTree

from collectors.listing import Cell, Fields, ListedGpu, Listing, lost_handles, read_gpu
from telemetry.errors import BadInput
from telemetry.metrics import ClockEvent

FIELDS = Fields(
    uuid="uuid",
    bus_id="pci/pci_bus_id",
    model="product_name",
    serial="serial",
    driver_version="driver_version",
    mig="mig_mode/current_mig",
    fabric_state="fabric/state",
    fabric_status="fabric/status",
    xml=True,
)

# The ends of the tags below <clocks_event_reasons>, which drivers before 535 call <clocks_throttle_reasons>.
_REASONS: Mapping[str, int] = {
    "gpu_idle": ClockEvent.GPU_IDLE,
    "applications_clocks_setting": ClockEvent.APPLICATIONS_CLOCKS,
    "sw_power_cap": ClockEvent.SW_POWER_CAP,
    "hw_slowdown": ClockEvent.HW_SLOWDOWN,
    "sync_boost": ClockEvent.SYNC_BOOST,
    "sw_thermal_slowdown": ClockEvent.SW_THERMAL,
    "hw_thermal_slowdown": ClockEvent.HW_THERMAL,
    "hw_power_brake_slowdown": ClockEvent.HW_POWER_BRAKE,
    "display_clocks_setting": ClockEvent.DISPLAY_CLOCKS,
    "display_clock_setting": ClockEvent.DISPLAY_CLOCKS,
}
_ROOT = b"<nvidia_smi_log"


class _GpuCells:
    """The cells of one <gpu> element."""

    def __init__(self, element: ElementTree.Element) -> None:
        self._element = element

    def cell(self, path: str) -> Cell | None:
        found = self._element.find(path)
        if found is None:
            return Cell(self._element.get("id", "")) if path == FIELDS.bus_id else None
        if path.endswith(("clocks_event_reasons", "clocks_throttle_reasons")):
            return Cell(_mask(found))
        return Cell((found.text or "").strip())


def _mask(reasons: ElementTree.Element) -> str:
    """The children's Active and Not Active as one mask; the element's own words if it has no children to read."""
    mask = 0
    excuse = (reasons.text or "").strip()
    known = False
    for child in reasons:
        text = (child.text or "").strip()
        if text in ("Active", "Not Active"):
            known = True
            name = child.tag.partition("_reason_")[2]
            mask |= _REASONS.get(name, 0) if text == "Active" else 0
        else:
            excuse = excuse or text
    return f"0x{mask:x}" if known else excuse


def parse_xml(output: bytes) -> Listing:
    """The GPUs of one listing; raises BadInput when there is no listing in the output.

    Text before or after the XML (the driver's complaints) is read for lost GPUs. A listing that breaks off keeps the
    GPUs that came before.
    """
    start = output.find(_ROOT)
    if start < 0:
        raise BadInput("no_listing", f"no nvidia_smi_log in {len(output)} bytes")
    if b"<!ENTITY" in output:
        raise BadInput("xml_entity", "the listing declares entities")
    end = output.find(b"</nvidia_smi_log>", start)
    body = output[start:] if end < 0 else output[start : end + len(b"</nvidia_smi_log>")]
    around = output[:start] + (b"" if end < 0 else output[end:])
    parser: ElementTree.XMLPullParser[ElementTree.Element[str]] = ElementTree.XMLPullParser(["end"])
    driver_version: str | None = None
    gpus: list[ListedGpu] = []
    complete = end >= 0
    try:
        # One feed a GPU: what was read before a broken place is kept.
        for piece in _pieces(body):
            parser.feed(piece)
            for event in parser.read_events():
                element = event[-1]
                if not isinstance(element, ElementTree.Element):
                    continue
                if element.tag == "gpu":
                    gpus.append(read_gpu(_GpuCells(element), FIELDS, driver_version=driver_version))
                    element.clear()
                elif element.tag == "driver_version" and not gpus:
                    driver_version = (element.text or "").strip() or None
    except ElementTree.ParseError:
        complete = False
    if not gpus and not complete:
        raise BadInput("truncated", "the listing breaks off before its first GPU is whole")
    return Listing(
        gpus=gpus,
        complete=complete,
        lost=lost_handles(around.decode("utf-8", "replace")),
        broken={} if complete else {"listing:truncated": 1},
    )


def _pieces(body: bytes) -> list[bytes]:
    pieces = body.split(b"</gpu>")
    return [piece + b"</gpu>" for piece in pieces[:-1]] + pieces[-1:]
