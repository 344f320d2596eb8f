"""Answers rebuilt as soon as the store changes, so that nobody waits for the common ones.

To keep another endpoint warm: `warm=True` in its `Endpoint`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

from starlette.concurrency import run_in_threadpool

from api.answers import Answers, Built, Key
from api.endpoint import Endpoint, Site
from api.parameters import parse
from api.refusal import Refused
from telemetry.errors import StoreError

_LOG = logging.getLogger("isotach.api")


@asynccontextmanager
async def kept_warm(site: Site, answers: Answers, endpoints: Sequence[Endpoint]) -> AsyncIterator[None]:
    """Rebuild the common answers, and those asked for since the last change, whenever the store changes."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()

    def wake(_: int) -> None:
        with suppress(RuntimeError):  # the loop is closed while the writer still writes
            loop.call_soon_threadsafe(changed.set)

    async def rebuild() -> None:
        by_path = {endpoint.path: endpoint for endpoint in endpoints}
        while True:
            await changed.wait()
            changed.clear()
            common = [(endpoint.path, b"") for endpoint in endpoints if endpoint.warm]
            for key in dict.fromkeys([*common, *answers.wanted()]):
                if key[0] in by_path:
                    await _rebuilt(site, answers, by_path[key[0]], key)
            with suppress(StoreError):  # whoever asks next is told
                await run_in_threadpool(site.fleets.warm)

    unsubscribe = site.store.subscribe(wake)
    changed.set()
    task = asyncio.create_task(rebuild())
    try:
        yield
    finally:
        unsubscribe()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _rebuilt(site: Site, answers: Answers, endpoint: Endpoint, key: Key) -> None:
    """Build one answer; a failure is logged, and told to whoever asks for that answer, but stops no other."""
    build = partial(_build, site, endpoint, key[1])
    task = asyncio.ensure_future(answers.get(key, endpoint.path, endpoint.tables, build))
    await asyncio.wait({task})
    error = task.exception()
    if error is not None and not isinstance(error, Refused):
        _LOG.error("%s could not be rebuilt: %s", key[0], error, exc_info=error)


def _build(site: Site, endpoint: Endpoint, query: bytes) -> Built:
    return endpoint.build(site, parse(query, endpoint.parameters))
