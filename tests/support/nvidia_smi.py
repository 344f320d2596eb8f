"""A stand-in for the program nvidia-smi: a shell script, since no GPU is needed to be asked badly or to hang.

To let it answer otherwise: another `case` in the script a test writes.
"""

import stat
from collections.abc import Iterable
from pathlib import Path


def program(folder: Path, script: str) -> tuple[str, ...]:
    """A program that runs this shell script; its arguments are in "$*"."""
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return (str(path),)


def gpu_xml(number: int, *, uuid: str | None = None, cells: str = "", clock: str = "1980 MHz") -> str:
    """One <gpu> element, synthetic; `number` makes its bus id and UUID."""
    return (
        f'<gpu id="00000000:{number:02X}:00.0"><uuid>{uuid or gpu_uuid(number)}</uuid>'
        f"<clocks><sm_clock>{clock}</sm_clock></clocks>{cells}</gpu>"
    )


def gpu_uuid(number: int) -> str:
    """The UUID that `gpu_xml` gives."""
    return f"GPU-{number:08x}-1111-4111-8111-11111111{number:04x}"


def listing_xml(gpus: Iterable[str], *, driver: str = "580.00.00") -> str:
    """A whole listing, synthetic."""
    return (
        '<?xml version="1.0" ?>\n<nvidia_smi_log>'
        f"<driver_version>{driver}</driver_version>{''.join(gpus)}</nvidia_smi_log>\n"
    )
