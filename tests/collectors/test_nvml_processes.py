"""Lists of processes as drivers of different ages write them, and no more of them than there is room for."""

import ctypes
import mmap
import struct
from collections.abc import Callable
from typing import Any

import pynvml
import pytest

from collectors.nvml_child.library import Library
from collectors.nvml_child.processes import LISTS, MOST, TOO_MANY, processes
from collectors.nvml_child.wire import PROGRESS_BYTES

COMPUTE = LISTS[0][0].__name__
V1, V2, V3 = "<I4xQ", "<I4xQII", "<I4xQIIQ"
PROTECTED, DETAILED = "nvmlDeviceGetConfComputeMemSizeInfo", "nvmlDeviceGetRunningProcessDetailList"
Make = Callable[..., list[int]]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes a driver that has these calls, whose list is written in this form; returns how often it was asked."""

    def make(*names: str, form: str, pids: int = 3, says: int | None = None, code: int = 0) -> list[int]:
        asked: list[int] = []

        def listed(handle: Any, count: Any, room: Any) -> int:
            size = ctypes.cast(count, ctypes.POINTER(ctypes.c_uint))
            asked.append(size[0])
            written = min(pids, size[0])
            extra = (7,) * (len(struct.unpack(form, bytes(struct.calcsize(form)))) - 2)
            data = b"".join(struct.pack(form, 100 + i, i << 20, *extra) for i in range(written))
            ctypes.memmove(room, data, len(data))
            size[0] = written if says is None else says
            return code

        def pointer(name: str) -> Any:
            if name not in names:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
            return listed

        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", pointer)
        return asked

    return make


def read() -> dict[str, Any]:
    """What the child finds out about a GPU."""
    return processes(Library(mmap.mmap(-1, PROGRESS_BYTES)), ctypes.c_void_p(1))


@pytest.mark.parametrize(
    ("names", "form"),
    [
        ([COMPUTE], V1),
        ([COMPUTE, COMPUTE + "_v2"], V2),
        ([COMPUTE, COMPUTE + "_v2", COMPUTE + "_v3"], V2),
        ([COMPUTE + "_v3", PROTECTED], V3),  # the first drivers of 535
        ([COMPUTE + "_v3", PROTECTED, DETAILED], V2),
    ],
)
def test_every_driver_s_list_is_read_in_its_own_form(names: list[str], form: str, driver: Make) -> None:
    """Read in another's form, the second entry would be another process."""
    driver(*names, form=form)
    assert read() == {"l": [[100, 0], [101, 1 << 20], [102, 2 << 20]]}


@pytest.mark.parametrize(("pids", "says", "code"), [(10**5, None, TOO_MANY), (5, 10**7, 0), (5, 2**32 - 1, 0)])
def test_a_list_that_does_not_fit_is_asked_for_once(pids: int, says: int | None, code: int, driver: Make) -> None:
    """Whether the driver says so, or claims to have written more than there was room for: unknown, at no cost."""
    asked = driver(COMPUTE + "_v3", form=V2, pids=pids, says=says, code=code)
    assert read() == {"l": [], "e": TOO_MANY}
    assert asked == [MOST]


def test_a_full_list_is_whole(driver: Make) -> None:
    """As many as there is room for, and none more."""
    driver(COMPUTE + "_v3", form=V2, pids=MOST)
    found = read()
    assert (len(found["l"]), "e" in found) == (MOST, False)


def test_without_any_call_nothing_is_known(driver: Make) -> None:
    """A driver older than the calls: unsupported, which is not the same as nobody."""
    driver(form=V1)
    assert read() == {"l": [], "e": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}
