"""Kubernetes' own schemas of its objects, for tests of what we would install: strict, without a cluster.

They come with the package kubernetes-validate; to judge by another version: `VERSIONS`.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import kubernetes_validate.utils as schemas

VERSIONS = ("1.25.0", "1.37.0")
"""The oldest that the chart takes, and the newest that there is a schema of."""
NOT_ITS_OWN = ("monitoring.coreos.com/v1",)
"""Kinds of the Prometheus operator: Kubernetes has no schema of them."""

schemas.schema_contents = cache(schemas.schema_contents)  # type: ignore[assignment]  # else each object reads 10 MB anew

Object = Mapping[str, Any]


def complaint(found: Object, version: str) -> str | None:
    """What this version of Kubernetes says against the object, unknown fields included; None for nothing."""
    if found["apiVersion"] in NOT_ITS_OWN:
        return None
    try:
        schemas.validate(dict(found), version, strict=True)
    except schemas.ValidationError as error:
        return f"{found['kind']} {found['metadata']['name']}: {'.'.join(map(str, error.path))}: {error.message}"
    except schemas.SchemaNotFoundError as error:
        return str(error.message)
    return None


def pods(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Pod templates of all workloads, by the component's name."""
    templates = [found["spec"]["template"] for found in objects if "template" in found.get("spec", {})]
    return {template["metadata"]["labels"]["app.kubernetes.io/component"]: template for template in templates}
