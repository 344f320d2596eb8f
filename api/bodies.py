"""Request bodies: read up to a size, and no further.

To accept another content encoding: `read_body`.
"""

from fastapi import Request

from telemetry.errors import BadInput


async def read_body(request: Request, *, most: int) -> bytes:
    """At most `most` bytes; what is larger is refused before it is read. Raises BadInput."""
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
