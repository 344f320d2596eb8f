"""What `isotach doctor` says of dcgm-exporters: which answer, which counters are missing there and what that costs.

To look at another thing of a page: `_look`.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from collectors.dcgm.collector import tls_context
from collectors.dcgm.counters import missing
from collectors.dcgm.exporter import Claims, Exporter
from collectors.dcgm.fetch import fetch
from collectors.dcgm.fields import READ
from collectors.dcgm.names import THREADS, Names
from collectors.dcgm.targets import Target
from isotach import roles
from isotach.checks.finding import Finding
from telemetry.errors import BadInput, IsotachError

AT_ONCE = 64
SHOWN = 5
LIST = "deploy/dcgm-exporter-counters.csv"


def exporters(settings: Mapping[str, Any]) -> Iterator[Finding]:
    """Every target of the settings, scraped once."""
    targets: dict[str, Target] = {}
    try:
        for source in roles.dcgm_sources(settings):
            targets |= {target.url: target for target in source.find()}
        context = tls_context(settings["dcgm_ca_file"])
    except IsotachError as error:
        remedy = "docs/collectors.md says how targets are given"
        yield Finding(check="dcgm targets", state="wrong", seen=str(error), lost="all telemetry", remedy=remedy)
        return
    began = time.monotonic()
    pages = asyncio.run(_all(list(targets.values()), timeout_s=settings["dcgm_timeout_s"], context=context))
    took_s = time.monotonic() - began
    good = [names for names, _, _ in pages if names]
    count = sum(gpus for _, gpus, _ in pages)
    seen = f"{len(good)} of {len(pages)} exporters answer, {count} GPUs, in {took_s:.1f} s"
    yield Finding(check="dcgm", state="ok" if good and len(good) == len(pages) else "wrong", seen=seen)
    troubles = [
        f"{target.url}: {trouble}" for target, (_, _, trouble) in zip(targets.values(), pages, strict=True) if trouble
    ]
    for text in troubles[:SHOWN]:
        remedy = "ask it with curl from this machine: address, firewall, or an exporter without GPUs"
        yield Finding(check="dcgm exporter", state="wrong", seen=text, lost="its node", remedy=remedy)
    if len(troubles) > SHOWN:
        yield Finding(check="dcgm exporter", state="wrong", seen=f"and {len(troubles) - SHOWN} more")
    lacking = Counter(name for names in good for name in missing(names))
    costs = missing(())
    for name, times in lacking.items():
        where = "on every exporter" if times == len(good) else f"on {times} of {len(good)} exporters"
        remedy = f"a line in the exporter's list of counters ({LIST})"
        yield Finding(check=f"counter {name}", state="note", seen=f"not shown {where}", lost=costs[name], remedy=remedy)


async def _all(targets: Sequence[Target], *, timeout_s: float, context: Any) -> list[tuple[frozenset[str], int, str]]:
    gate = asyncio.Semaphore(AT_ONCE)
    with ThreadPoolExecutor(THREADS) as pool:
        names = Names(pool)

        async def one(target: Target) -> tuple[frozenset[str], int, str]:
            async with gate:
                return await _look(target, names, timeout_s=timeout_s, context=context)

        return await asyncio.gather(*map(one, targets))


async def _look(target: Target, names: Names, *, timeout_s: float, context: Any) -> tuple[frozenset[str], int, str]:
    """Names of the counters of a target, its GPUs, and its trouble."""
    exporter = Exporter(target, interval_s=15.0, claims=Claims(keep_s=1.0), fallback_node="")
    try:
        async with asyncio.timeout(timeout_s):
            ip = await names.address(target.address.host)
            body = await fetch(target.address, ip=ip, max_bytes=exporter.max_bytes, context=context)
        exporter.read(body, time_ns=time.time_ns(), now=0.0)
    except TimeoutError:
        return frozenset(), 0, f"no whole page within {timeout_s:g} s"
    except BadInput as error:
        return frozenset(), 0, error.detail
    except OSError as error:
        return frozenset(), 0, error.strerror or str(error)
    text = body.decode("utf-8", errors="replace")
    return frozenset(name for name in READ if f"\n{name}{{" in "\n" + text or f'{name}="' in text), exporter.gpus, ""
