"""YAML read as text with line numbers: no scalar turns into a number, date or truth value on the way.

To check more of a document: functions here take a `yaml.Node` and raise BadInput with its line.
"""

import json

import yaml

from telemetry.errors import BadInput

_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


def parse(text: str) -> yaml.Node | None:
    """The document's root, None if it is empty; raises BadInput with the line of the mistake."""
    try:
        root = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise BadInput("bad_yaml", f"line {line}: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadInput("bad_yaml", f"not readable as YAML: {str(error)[:200]}") from None
    return root if isinstance(root, yaml.Node) else None


def where_of(node: yaml.Node) -> str:
    """`line 7`, for messages."""
    return f"line {node.start_mark.line + 1}"


def keys(node: yaml.Node | None, what: str) -> dict[str, yaml.Node]:
    """The mapping's values by key, in order; raises BadInput if it is none or names a key twice."""
    if not isinstance(node, yaml.MappingNode):
        raise BadInput("bad_topology", f"{_where(node, what)} must be a mapping, `key: value` lines")
    found: dict[str, yaml.Node] = {}
    for key, value in node.value:
        name = text_of(key, what)
        if name in found:
            raise BadInput("bad_topology", f"{where_of(key)}: `{name}` stands in {what} twice")
        found[name] = value
    return found


def items(node: yaml.Node | None, what: str) -> list[yaml.Node]:
    """The sequence's items; raises BadInput if it is none."""
    if not isinstance(node, yaml.SequenceNode):
        raise BadInput("bad_topology", f"{_where(node, what)} must be a list")
    return list(node.value)


def text_of(node: yaml.Node, what: str) -> str:
    """The scalar's text as it was written; raises BadInput for anything else."""
    if not isinstance(node, yaml.ScalarNode):
        raise BadInput("bad_topology", f"{_where(node, what)} must be one text")
    return str(node.value)


def quoted(text: str) -> str:
    """The text as a YAML scalar that every reader takes for text."""
    plain = text.isascii() and text.replace("_", "").replace("-", "").isalnum() and text[0].isalpha() and len(text) > 3
    if plain and text.lower() not in ("true", "false", "null"):
        return text
    return json.dumps(text, ensure_ascii=False)


def _where(node: yaml.Node | None, what: str) -> str:
    return f"{where_of(node)}: `{what}`" if node is not None else f"`{what}`"
