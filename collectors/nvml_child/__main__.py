"""`python -m collectors.nvml_child PAGE`: requests on standard input, answers on standard output, progress on PAGE.

To add a request: one branch in `_serve`.
"""

import contextlib
import ctypes
import gc
import mmap
import os
import signal
import sys
from typing import Any

from collectors.nvml_child import wire
from collectors.nvml_child.gpu import Gpu
from collectors.nvml_child.library import Failed, Library
from collectors.nvml_child.xids import Xids

PR_SET_PDEATHSIG = 1


def main() -> int:
    """Serve until the parent closes its end; 1 if NVML cannot be used."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # no child survives an agent that was killed
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is for the agent
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not get between the answers
    library = Library(mmap.mmap(int(sys.argv[1]), wire.PROGRESS_BYTES))
    try:
        about = library.start()
    except Failed as failed:
        wire.write(answers, wire.pack({"hello": {"error": failed.code}}))
        return 1
    library.rest()
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # of glibc
    gc.freeze()  # what is loaded stays: no need to look through it again and again
    wire.write(answers, wire.pack({"hello": about}))
    with contextlib.suppress(BrokenPipeError):
        _serve(library, answers, str(about["driver"]))
    return 0


def _serve(library: Library, answers: int, driver: str) -> None:
    inbox, gpus, xids = wire.Inbox(), dict[int, Gpu](), Xids(library)
    while data := os.read(0, 1 << 16):
        for request in inbox.feed(data):
            if "open" in request:
                _open(library, answers, gpus, xids, request["open"], driver)
            elif "only" in request:
                for number in set(gpus) - set(request["only"]):
                    del gpus[number]
            elif "read" in request:
                _read(library, answers, gpus, xids, who="who" in request)
            library.rest()


def _open(
    library: Library, answers: int, gpus: dict[int, Gpu], xids: Xids, targets: dict[str, Any], driver: str
) -> None:
    for text, where in targets.items():
        number = int(text)
        library.begin(wire.OPENING, number)
        try:
            gpu = Gpu(library, where, driver=driver)
        except Failed as failed:
            wire.write(answers, wire.pack({"opened": number, "error": failed.code}))
            continue
        xids.register(number, gpu.handle)
        gpus[number] = gpu
        wire.write(answers, wire.pack({"opened": number, **gpu.identity, "s": gpu.statics}))


def _read(library: Library, answers: int, gpus: dict[int, Gpu], xids: Xids, *, who: bool) -> None:
    library.begin(wire.READING, -1)
    wire.write(answers, wire.pack({"xids": xids.take(), "count": library.count()}))  # first: a GPU may hang below
    for number, gpu in tuple(gpus.items()):
        library.begin(wire.READING, number)
        wire.write(answers, wire.pack({"gpu": number, **gpu.read(who=who)}))
    wire.write(answers, wire.pack({"done": True}))


if __name__ == "__main__":
    sys.exit(main())
