"""XIDs from two sources, NVML's events and the kernel's log, each told once.

To add a source: a method like `heard`.
"""

from collections import defaultdict, deque
from collections.abc import Mapping

from telemetry.records import Event

SAME_WITHIN_NS = 5 * 10**9  #: both sources speak of one XID within a tick or two
AHEAD_NS = 10 * SAME_WITHIN_NS  #: what was told of a later time than this was told before the clock was set back
MOST_AT_ONCE = 10  #: of one GPU and code in one tick: the rest of a burst is a number in the last one's detail


class XidLedger:
    """What was told, by source, and not yet confirmed by the other one."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._told: Mapping[str, dict[tuple[str, int], deque[int]]] = {
            "nvml": defaultdict(deque),
            "kernel": defaultdict(deque),
        }

    def tell(self, source: str, found: list[tuple[int, str, int, str]]) -> list[Event]:
        """Events for those XIDs, as (time_ns, gpu_uuid, code, detail), that the other source has not told of."""
        other = self._told["kernel" if source == "nvml" else "nvml"]
        fresh: dict[tuple[str, int], list[tuple[int, str]]] = {}
        for time_ns, gpu, code, detail in found:
            waiting = other.get((gpu, code), deque())
            while waiting and not -SAME_WITHIN_NS <= waiting[0] - time_ns <= AHEAD_NS:
                waiting.popleft()
            if waiting:
                waiting.popleft()
                continue
            self._told[source][gpu, code].append(time_ns)
            fresh.setdefault((gpu, code), []).append((time_ns, detail))
        events = []
        for (gpu, code), times in fresh.items():
            more = len(times) - MOST_AT_ONCE
            last_ns = 0
            for place, (time_ns, detail) in enumerate(times[:MOST_AT_ONCE], start=1):
                last_ns = max(time_ns, last_ns + 1)  # equal times would be one and the same event
                text = f"{detail[:450]} (and {more} more)".strip() if more > 0 and place == MOST_AT_ONCE else detail
                events.append(
                    Event(
                        time_ns=last_ns, node=self._node, gpu_uuid=gpu, kind="xid", code=code, detail=text[:500] or None
                    )
                )
        self._forget(found)
        return events

    def _forget(self, found: list[tuple[int, str, int, str]]) -> None:
        newest_ns = max((time_ns for time_ns, *_ in found), default=0)
        for told in self._told.values():
            for key in [key for key, times in told.items() if not times or times[-1] < newest_ns - AHEAD_NS]:
                del told[key]
