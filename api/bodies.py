"""Request bodies: read up to a size, and no further; checked against a model, field by field.

To accept another content encoding: `read_body`.
"""

from typing import TypeVar

import orjson
from fastapi import Request
from pydantic import BaseModel, ValidationError

from api.refusal import Refused
from telemetry.errors import BadInput

Model = TypeVar("Model", bound=BaseModel)


async def read_body(request: Request, *, most: int, only: str | None = None) -> bytes:
    """At most `most` bytes; what is larger is refused before it is read. Raises BadInput.

    With `only`, the content type must be that one.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if only is not None and kind != only:
        raise BadInput("unknown_content_type", f"content type {kind[:80]!r}; this route takes {only}")
    announced = request.headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > most:
        raise BadInput("too_large", f"body of {announced} bytes; at most {most}")
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise BadInput("unknown_content_type", f"content encoding {encoding[:80]!r}; send the body as it is")
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise BadInput("too_large", f"body of more than {most} bytes")
        parts.append(part)
    return b"".join(parts)


def read_model(raw: bytes, model: type[Model]) -> Model:
    """The body as the model; raises Refused naming the first field that is wrong, and why."""
    try:
        asked = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise Refused(422, "not_json", f"the body is no JSON: {error}"[:300]) from None
    if not isinstance(asked, dict):
        raise Refused(422, "not_an_object", "the body is one JSON object, as docs/api.md shows")
    known = fields(model)
    unknown = [name for name in asked if name not in known]
    if unknown:
        raise Refused(422, "unknown_parameter", f"no field {unknown[0][:80]!r} here; there are: {', '.join(known)}")
    try:
        return model.model_validate(asked)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        if first["type"] == "missing":
            raise Refused(422, "bad_parameter", f"{where} is required") from None
        raise Refused(422, "bad_parameter", f"{where}={first['input']!r:.80} is not allowed: {first['msg']}") from None


def fields(model: type[BaseModel]) -> tuple[str, ...]:
    """The names that a body of the model may have."""
    return tuple(field.alias or name for name, field in model.model_fields.items())
