"""Refusals: every answer that is not a success has one shape, a rule, what is wrong, and what to do about it.

To add a remedy: one line in `REMEDIES`.
"""

from collections.abc import Mapping
from types import MappingProxyType

import orjson
from fastapi import Response

from telemetry.errors import IsotachError

REMEDIES: Mapping[str, str] = MappingProxyType(
    {
        "unknown_schema": "Send the schema header that the encoder made; upgrade this server before its agents.",
        "unknown_content_type": "Set Content-Type to application/json or application/vnd.isotach.arrow+zstd.",
        "not_zstd": "Compress the whole record batch with zstd, or send JSON.",
        "decompression_bomb": "Send smaller batches: about 10 seconds of one node.",
        "truncated": "Send the body whole; the Arrow record batch must be as long as it says.",
        "wrong_schema": "Encode the columns that the schema header names, in catalogue order.",
        "not_json": "Send valid JSON in UTF-8; NaN and infinity do not exist in JSON: use null.",
        "not_an_object": "Send one JSON object, or for events, inventory, measurements and jobs a list of objects.",
        "missing_field": "Add the field; docs/api.md has an example of each body.",
        "wrong_type": "Send the type that docs/api.md names for the field.",
        "unknown_class": "Use compute, memory, communication or mixed.",
        "unknown_scope": "Use gpu or node.",
        "unknown_source": "Use slurm, kubernetes or other.",
        "too_large": "Split the message: at most 1 MiB a request.",
        "unknown_topic": "Set Isotach-Topic to one of the topics named, or leave it out for telemetry.",
        "wrong_key": "Leave out Isotach-Key, or set it to the node's name.",
        "unauthorized": "Send the header Authorization: Bearer TOKEN with the token of this server.",
        "unknown_parameter": "Leave it out, or use one of the parameters named.",
        "bad_parameter": "Use one of the values named.",
        "not_found": "GET /openapi.json lists every route.",
        "unknown_node": "GET /v1/nodes?limit=0 lists every node.",
        "unknown_gpu": "GET /v1/gpus?limit=0 lists every GPU.",
        "method_not_allowed": "Use the method named in the Allow header.",
        "no_telemetry_here": "Post to a server that takes telemetry, or produce to Kafka.",
        "log_unavailable": "Send the same request again later: nothing is counted twice.",
        "store_unavailable": "Try again in a moment; if it stays, the server's log says why.",
        "internal": "The server's log has the details.",
    }
)
"""What to do about each rule."""


class Refused(IsotachError):
    """A request is answered with an error: status, the rule's name, what is wrong, and headers if any."""

    def __init__(self, status: int, rule: str, detail: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(f"{rule}: {detail}")
        self.status = status
        self.rule = rule
        self.detail = detail
        self.headers = dict(headers or {})


def answer(refused: Refused) -> Response:
    """The response to a refusal."""
    remedy = REMEDIES.get(refused.rule, "docs/api.md and docs/deadletters.md describe what is accepted.")
    body = orjson.dumps({"error": {"rule": refused.rule, "detail": refused.detail, "remedy": remedy}})
    headers = {"cache-control": "no-store"} | refused.headers
    return Response(body, status_code=refused.status, headers=headers, media_type="application/json")
