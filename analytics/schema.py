"""The store's schema: numbered migrations from `migrations/`, and the comments on every table and column.

To change the schema: a new file `NNNN_name.sql` with the next number; a published file is never edited.
"""

import re
from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType
from typing import Any, NamedTuple

from analytics.rollups import ROLLUPS
from telemetry.errors import StoreError
from telemetry.tables import TABLES, Table

DOCUMENTED: tuple[Table, ...] = (*TABLES.values(), *ROLLUPS)
"""Tables whose columns are described, and so commented in the store."""

_INTERNAL: Mapping[str, str] = MappingProxyType(
    {
        "schema_version": "Migrations applied to this file.",
        "log": "The log that `places` belongs to.",
        "places": "The next offset to read of each partition of the log.",
        "hours_to_roll": "Hours with windows that the roll-ups do not have yet.",
    }
)
_VIEWS: Mapping[str, str] = MappingProxyType(
    {
        "tiers": "GPUs by tier, as last scored; freshness is not considered.",
        "node_levels": "Place of each node: topology, then what the node says of levels that the topology leaves open.",
    }
)


class Migration(NamedTuple):
    """One step of the schema."""

    number: int
    name: str
    sql: str


def migrations() -> list[Migration]:
    """Every migration, in order; raises StoreError if the numbers are not 1, 2, 3 ..."""
    found = []
    for file in resources.files("analytics").joinpath("migrations").iterdir():
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", file.name)
        if match:
            found.append(Migration(int(match[1]), match[2], file.read_text(encoding="utf-8")))
    found.sort()
    if [step.number for step in found] != list(range(1, len(found) + 1)):
        raise StoreError(f"migrations are not numbered 1, 2, 3 ...: {[step.number for step in found]}")
    return found


def migrate(cursor: Any) -> None:
    """Bring an open database to the newest schema, each step in a transaction; raises StoreError if it is newer."""
    cursor.execute("CREATE TABLE IF NOT EXISTS schema_version (number INTEGER NOT NULL, name VARCHAR NOT NULL)")
    applied = {number for (number,) in cursor.execute("SELECT number FROM schema_version").fetchall()}
    steps = migrations()
    newest = max(applied, default=0)
    if newest > len(steps):
        raise StoreError(
            f"the store has schema {newest}, this program knows up to {len(steps)}: "
            "use the version of Isotach that wrote it, or a newer one"
        )
    for step in steps:
        if step.number not in applied:
            cursor.execute("BEGIN")
            cursor.execute(step.sql)
            cursor.execute("INSERT INTO schema_version VALUES (?, ?)", [step.number, step.name])
            cursor.execute("COMMIT")
    _comment(cursor)


def _comment(cursor: Any) -> None:
    """Write the descriptions that the database does not have yet."""
    have: dict[tuple[str, str], str | None] = {
        (table, ""): text
        for table, text in cursor.execute(
            "SELECT table_name, comment FROM duckdb_tables() WHERE NOT internal "
            "UNION ALL SELECT view_name, comment FROM duckdb_views() WHERE NOT internal"
        ).fetchall()
    }
    columns = cursor.execute("SELECT table_name, column_name, comment FROM duckdb_columns() WHERE NOT internal")
    have |= {(table, column): text for table, column, text in columns.fetchall()}
    statements = []
    for (table, column), text in comments().items():
        if have.get((table, column)) != text:
            kind = "COLUMN" if column else ("VIEW" if table in _VIEWS else "TABLE")
            name = f"{table}.{column}" if column else table
            statements.append(f"COMMENT ON {kind} {name} IS '{text.replace(chr(39), chr(39) * 2)}';")
    if statements:
        cursor.execute("BEGIN; " + "\n".join(statements) + " COMMIT")


def comments() -> dict[tuple[str, str], str]:
    """What every (table, column) means; column is empty for the table itself."""
    texts: dict[tuple[str, str], str] = {(name, ""): text for name, text in (*_INTERNAL.items(), *_VIEWS.items())}
    for table in DOCUMENTED:
        texts[table.name, ""] = f"{table.grain}; key {', '.join(table.key)}"
        for column in table.columns:
            texts[table.name, column.name] = f"{column.help} Unit: {column.unit}." if column.unit else column.help
    return texts
