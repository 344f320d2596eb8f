"""The fleet at one version of the store: scores as they may be served now, inventory, topology.

To serve another table's columns with each GPU: `_QUERY` here, and the item in the endpoint.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import polars as pl

from analytics.floor import Floor, floor_of
from analytics.frames import frame, schema
from analytics.node_names import under_names_of
from analytics.store import Store
from analytics.topology import combine, from_inventory
from telemetry.errors import BadInput, StoreError
from telemetry.tables import SCORES, TIERS

TABLES = ("scores", "gpus", "nodes", "topology")
"""Tables that a `Fleet` is made of."""

NEVER_NS = 2**63 - 1
_HEALTHY = ("premium", "standard", "degraded")
_INVENTORY = ("slot", "model", "bus_id", "driver_version")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """One consistent state. Treat the frames as read-only.

    `gpus`: one row per gpu_uuid that has a score or is in the inventory: the columns of `scores` (a GPU without a score
    is `unknown`), `slot`, `model`, and `stale`: its evidence is too old, so that its tier is `unknown`. `as_of_ns` is
    the newest evidence, None without any; `made_ns` when it was made of the store; `expires_ns` when the next tier
    turns `unknown` by age.
    """

    version: int
    gpus: pl.DataFrame
    nodes: pl.DataFrame
    topology: pl.DataFrame
    as_of_ns: int | None
    made_ns: int
    stale_after_ns: int
    stale: bool
    expires_ns: int
    orders: dict[str | None, pl.DataFrame] = field(default_factory=dict, compare=False, repr=False)
    floors: dict[str, Floor] = field(default_factory=dict, compare=False, repr=False)
    lock: threading.Lock = field(default_factory=threading.Lock, compare=False, repr=False)

    @property
    def scores(self) -> pl.DataFrame:
        """Rows of `scores` as they may be served now."""
        return self.gpus.select(SCORES.names)

    def envelope(self) -> dict[str, object]:
        """as_of, valid_until and stale, as every body begins."""
        return envelope(self.as_of_ns, stale_after_ns=self.stale_after_ns, stale=self.stale)

    def ranked(self, workload_class: str | None) -> pl.DataFrame:
        """`gpus`, best first, with `rank` from 1, and `speed*` and `workload_class` of the class asked for.

        premium, standard and degraded by speed, highest first and null last; then unknown; then quarantine; equal
        ones by gpu_uuid. The same rows give the same order on every replica.
        """
        known = self.orders.get(workload_class)
        if known is None:
            known = self.orders[workload_class] = self._ranked(workload_class)
        return known

    def floor(self, workload_class: str) -> Floor:
        """The fleet as placements see it, made once for each class that is asked for."""
        with self.lock:
            known = self.floors.get(workload_class)
            if known is None:
                known = self.floors[workload_class] = floor_of(
                    self.scores, self.topology, self.nodes, workload_class=workload_class
                )
            return known

    def _ranked(self, workload_class: str | None) -> pl.DataFrame:
        gpus = self.gpus if workload_class is None else _of_class(self.gpus, workload_class)
        group = pl.col("tier").replace_strict(dict.fromkeys(_HEALTHY, 0) | {"quarantine": 2}, default=1)
        return (
            gpus.with_columns(group=group)
            .sort(["group", "speed", "gpu_uuid"], descending=[False, True, False], nulls_last=True)
            .with_columns(rank=pl.int_range(1, pl.len() + 1, dtype=pl.UInt32))
            .drop("group")
        )


class Fleets:
    """Makes the fleet of this moment, and keeps it until the store changes or a score grows too old."""

    def __init__(
        self, store: Store, *, topology: pl.DataFrame | None, clock_ns: Callable[[], int], stale_after_ns: int
    ) -> None:
        self._store = store
        self._topology = topology
        self._clock_ns = clock_ns
        self._stale_after_ns = stale_after_ns
        self._lock = threading.Lock()
        self._last: Fleet | None = None
        self._floored: dict[str, Fleet] = {}

    def current(self) -> Fleet:
        """The fleet now; raises StoreError."""
        with self._lock:
            last, now = self._last, self._clock_ns()
            if last is None or last.version != self._store.version_of(*TABLES) or now >= last.expires_ns:
                last = self._last = self._made(now)
            return last

    def floored(self, workload_class: str, *, max_age_ns: int = 0) -> Fleet:
        """The fleet now, with its floor of the class made; raises StoreError.

        After a change that takes a while. Whoever allows it gets the fleet before meanwhile, if it was made no longer
        than `max_age_ns` ago and no tier in it has grown too old.
        """
        known, now = self._floored.get(workload_class), self._clock_ns()
        if known is not None and now < known.expires_ns and 0 < max_age_ns >= now - known.made_ns:
            return known
        fleet = self.current()
        fleet.floor(workload_class)
        self._floored[workload_class] = fleet
        return fleet

    def warm(self) -> None:
        """Make the floors of the classes that were asked for before, so that nobody waits for them."""
        for workload_class in sorted(self._floored):
            self.floored(workload_class)

    def _made(self, now_ns: int) -> Fleet:
        version = self._store.version_of(*TABLES)
        scores, gpus, nodes = (self._store.table(name) for name in ("scores", "gpus", "nodes"))
        as_of = scores["as_of_ns"].max()
        unscored = gpus.join(scores, on="gpu_uuid", how="anti").select("gpu_uuid", "node", "seen_ns")
        every = pl.concat([scores, _without_score(unscored)])
        stale = now_ns - pl.col("as_of_ns") > self._stale_after_ns
        known = pl.when(pl.col("tier").is_in(TIERS)).then("tier").otherwise(pl.lit("unknown"))
        every = every.with_columns(
            stale=stale, tier=pl.when(stale & (known != "quarantine")).then(pl.lit("unknown")).otherwise(known)
        ).join(gpus.select("gpu_uuid", *_INVENTORY), on="gpu_uuid", how="left")
        fresh = every.filter(~pl.col("stale"))["as_of_ns"].min()
        assert as_of is None or isinstance(as_of, int)  # noqa: S101 - for the type checker: the column is int64
        assert fresh is None or isinstance(fresh, int)  # noqa: S101
        return Fleet(
            version=version,
            gpus=every,
            nodes=nodes,
            topology=self._combined(nodes, gpus),
            as_of_ns=as_of,
            made_ns=now_ns,
            stale_after_ns=self._stale_after_ns,
            stale=as_of is None or now_ns - as_of > self._stale_after_ns,
            expires_ns=NEVER_NS if fresh is None else fresh + self._stale_after_ns + 1,
        )

    def _combined(self, nodes: pl.DataFrame, gpus: pl.DataFrame) -> pl.DataFrame:
        """What the operator says comes first, then what is stored, then what the nodes say of themselves."""
        try:
            told = [*([] if self._topology is None else [self._topology]), self._store.table("topology")]
            return combine(*(under_names_of(one, nodes["node"]) for one in told), from_inventory(nodes, gpus))
        except BadInput as error:
            raise StoreError(f"the topology in the store cannot be used: {error}") from error


def envelope(as_of_ns: int | None, *, stale_after_ns: int, stale: bool) -> dict[str, object]:
    """as_of, valid_until and stale; without any evidence both times are null and stale is true."""
    return {
        "as_of": None if as_of_ns is None else iso(as_of_ns),
        "valid_until": None if as_of_ns is None else iso(as_of_ns + stale_after_ns),
        "stale": stale,
    }


def iso(time_ns: int) -> str:
    """The time as ISO 8601 in UTC, to the millisecond below; times beyond the year 9999 are shown as its end."""
    seconds, rest = divmod(time_ns, 10**9)
    moment = datetime.fromtimestamp(min(max(seconds, -62_135_596_800), 253_402_300_799), UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest // 10**6:03d}Z"


def _without_score(gpus: pl.DataFrame) -> pl.DataFrame:
    """Rows of `scores` for GPUs that have none; as old as the inventory that names them."""
    reason = '[{"code":"no_score","value":null,"limit":null,"text":"no telemetry or measurement yet"}]'
    rows = gpus.with_columns(
        as_of_ns=pl.col("seen_ns"),
        window_start_ns=pl.lit(0),
        peers=pl.lit(0),
        evidence=pl.lit(0),
        tier=pl.lit("unknown"),
        tier_since_ns=pl.col("seen_ns"),
        reasons=pl.lit(reason),
        action=pl.lit("none"),
    ).drop("seen_ns")
    return pl.concat(
        [frame(SCORES), rows.cast({n: t for n, t in schema(SCORES).items() if n in rows.columns})], how="diagonal"
    )


def _of_class(gpus: pl.DataFrame, workload_class: str) -> pl.DataFrame:
    """The same rows with speed, speed_low, speed_high of one class, null where a GPU has no evidence in it."""
    own = pl.col("workload_class") == workload_class
    parts = {"speed": "speed", "speed_low": "low", "speed_high": "high"}
    return gpus.with_columns(
        pl.coalesce(
            pl.col("speeds").str.json_path_match(f"$.{workload_class}.{part}").cast(pl.Float64, strict=False),
            pl.when(own).then(pl.col(name)),
        ).alias(name)
        for name, part in parts.items()
    ).with_columns(workload_class=pl.lit(workload_class))
