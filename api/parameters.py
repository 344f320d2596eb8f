"""Query parameters: one declaration each, which parses, refuses, and documents them.

To add a parameter: a `Parameter` in the endpoint that reads it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import parse_qsl

from api.refusal import Refused

MAX_TEXT = 512  #: characters of a value


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One query parameter; `low` and `high` are inclusive, an absent one has the default."""

    name: str
    kind: Literal["text", "integer", "choice", "time"]
    help: str
    default: str | int | None = None
    choices: Sequence[str] = ()
    low: int = 0
    high: int = 2**63 - 1
    example: str | int | None = None
    required: bool = False

    def parse(self, text: str) -> str | int:
        """The value; raises Refused naming the parameter and what is allowed."""
        if self.kind == "choice":
            if text not in self.choices:
                raise self._refusal(text, f"one of {', '.join(self.choices)}")
            return text
        if self.kind == "text":
            if not 0 < len(text) <= MAX_TEXT or not text.isprintable():
                raise self._refusal(text, f"1 to {MAX_TEXT} printable characters")
            return text
        number = _nanoseconds(text) if self.kind == "time" else _integer(text)
        if number is None or not self.low <= number <= self.high:
            time = "an ISO 8601 time with its zone, or ns since 1970" if self.kind == "time" else "a whole number"
            raise self._refusal(text, f"{time} from {self.low} to {self.high}")
        return number

    def openapi(self) -> dict[str, Any]:
        """The parameter in an OpenAPI document."""
        schema: dict[str, Any] = {"type": "integer" if self.kind == "integer" else "string"}
        if self.kind == "choice":
            schema["enum"] = list(self.choices)
        if self.kind == "integer":
            schema |= {"minimum": self.low} | ({"maximum": self.high} if self.high < 2**63 - 1 else {})
        if self.default is not None:
            schema["default"] = self.default
        shown = {"example": self.example} if self.example is not None else {}
        told = {"required": self.required, "description": self.help, "schema": schema}
        return {"name": self.name, "in": "query"} | told | shown

    def _refusal(self, text: str, allowed: str) -> Refused:
        return Refused(422, "bad_parameter", f"{self.name}={text[:80]!r} is not allowed: {allowed}")


def parse(query: bytes, parameters: Sequence[Parameter]) -> dict[str, Any]:
    """Every parameter's value, defaults filled in; raises Refused for an unknown, repeated or bad one."""
    known = {parameter.name: parameter for parameter in parameters}
    values: dict[str, Any] = {parameter.name: parameter.default for parameter in parameters}
    seen: set[str] = set()
    for name, text in _pairs(query):
        if name not in known:
            allowed = ", ".join(known) or "none"
            raise Refused(422, "unknown_parameter", f"no parameter {name[:80]!r} here; there are: {allowed}")
        if name in seen:
            raise Refused(422, "bad_parameter", f"{name} is given twice; once is allowed")
        seen.add(name)
        values[name] = known[name].parse(text)
    for parameter in parameters:
        if parameter.required and parameter.name not in seen:
            raise Refused(422, "bad_parameter", f"{parameter.name} is needed: {parameter.help}")
    return values


def _pairs(query: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=32)
    except UnicodeDecodeError:
        raise Refused(422, "bad_parameter", "the query is no UTF-8; percent-encode it") from None
    except ValueError:
        raise Refused(422, "bad_parameter", "the query has too many fields; at most 32") from None


def _integer(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def _nanoseconds(text: str) -> int | None:
    number = _integer(text)
    if number is not None:
        return number
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1_000


LIMIT = Parameter(
    name="limit", kind="integer", default=100, low=0, high=100_000, help="At most this many items; 0 is all of them."
)
OFFSET = Parameter(name="offset", kind="integer", default=0, high=10_000_000, help="Leave out this many items first.")
