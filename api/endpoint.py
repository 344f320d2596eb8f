"""What an endpoint is: a path, what it reads, its parameters, and one function that builds the body.

To add an endpoint: an `Endpoint` in the module of its noun, that module in `app._NOUNS`, its section in docs/api.md.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from analytics.store import Store
from api.answers import Built
from api.fleet import Fleet, Fleets
from api.parameters import Parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What every endpoint reads from."""

    store: Store
    fleets: Fleets


Values = Mapping[str, Any]
"""Checked parameters by name, the path's included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One GET route. `tables` are those whose change makes its answers old; `warm` rebuilds it at every change."""

    path: str
    summary: str
    help: str
    tables: Sequence[str]
    build: Callable[[Site, Values], Built]
    model: type[BaseModel]
    example: Mapping[str, Any]
    parameters: Sequence[Parameter] = ()
    warm: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One POST route: what is asked, or said, is a JSON body (`asked` is an example of it).

    `errors` are its refusals by status, but for 422, which every route has.
    """

    path: str
    summary: str
    help: str
    request: type[BaseModel]
    asked: Mapping[str, Any]
    model: type[BaseModel]
    example: Mapping[str, Any]
    status: int = 200
    errors: Mapping[int, str] = field(default_factory=dict)


def listing(fleet: Fleet, items: Sequence[Mapping[str, Any]], total: int) -> Built:
    """The body of every list: when it is from, until when it holds, how many there are, and the items."""
    return Built(body={**fleet.envelope(), "total": total, "items": items}, expires_ns=fleet.expires_ns)
