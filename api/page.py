"""The page at `/`: the ranking for a person, one file without anything from elsewhere.

To change what it shows: `api/page.html`, which asks the same endpoints as everybody.
"""

from pathlib import Path

from fastapi import FastAPI, Response

_HTML = Path(__file__).with_name("page.html").read_bytes()
_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def add_page(app: FastAPI) -> None:
    """`GET /`."""

    async def page() -> Response:
        return Response(_HTML, media_type="text/html", headers=_HEADERS)

    app.add_api_route("/", page, methods=["GET"], include_in_schema=False, response_model=None)
