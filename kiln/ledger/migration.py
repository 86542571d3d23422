"""Migrate the ledger of an older kiln to the current schema, in one transaction."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from kiln.ledger import schema

if TYPE_CHECKING:
    import sqlite3

# Schema 2 called the build of a config a cell, the fleet's workers machines, and the first build of a group its leader;
# schema 3 had other names for the times and states of workers and jobs.
TABLES = {"cell": "config_run", "machine": "worker"}
FIELDS = {
    "config_run": {"leader": "cold", "machine": "worker"},
    "worker": {"asked": "requested", "up": "provisioned", "gone": "terminated"},
    "job": {"leader": "cold", "machine": "worker", "began": "started", "ended": "finished"},
}
VALUES = {  # of the field `state` of records
    "worker": {"asked for": "requested", "leaving": "terminating", "gone": "terminated"},
    "job": {"asked for": "requested", "ended": "finished", "home": "collected"},
}
TITLES = {"cell": "config"}  # of steps
STATES = {"found": "cached", "elsewhere": "locked by another process"}


def migrate_schema(connection: sqlite3.Connection) -> None:
    """Rename the tables and values of an older schema, and create missing tables; other processes wait meanwhile."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        (version,) = connection.execute(
            "PRAGMA user_version"
        ).fetchone()  # read again: another process may have been first
        if version != schema.VERSION:
            tables = table_names(connection)
            connection.execute("DROP INDEX IF EXISTS cell_of_config")
            for old, new in TABLES.items():
                if old in tables and new not in tables:
                    connection.execute(f"ALTER TABLE {old} RENAME TO {new}")
            for statement in filter(str.strip, schema.RUNS.split(";")):
                connection.execute(statement)
            rename_old_values(connection)
            connection.execute(f"PRAGMA user_version = {schema.VERSION}")


def rename_old_values(connection: sqlite3.Connection) -> None:
    """Rename the states and the fields of records; current names stay as they are."""
    for column, words, tables in (("state", STATES, ("config_run", "change")), ("title", TITLES, ("step",))):
        for table in tables:
            for old, new in words.items():
                connection.execute(f"UPDATE {table} SET {column} = ? WHERE {column} = ?", (new, old))  # noqa: S608 - ours
    for table in FIELDS.keys() & table_names(connection):
        key = [row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[5]]
        rows = connection.execute(f"SELECT detail, {', '.join(key)} FROM {table}").fetchall()  # noqa: S608 - ours
        where = " AND ".join(f"{name} = ?" for name in key)
        for detail, *values in rows:
            renamed = _rename_detail_fields(detail, FIELDS[table], VALUES.get(table, {}))
            if renamed != detail:
                connection.execute(f"UPDATE {table} SET detail = ? WHERE {where}", (renamed, *values))  # noqa: S608


def _rename_detail_fields(detail: str, fields: dict[str, str], states: dict[str, str]) -> str:
    """Return a JSON object with its fields and its state renamed; other text stays, for its reader to refuse."""
    try:
        record = json.loads(detail)
    except ValueError:
        return detail
    if not isinstance(record, dict) or not (fields.keys() & record.keys() or record.get("state") in states):
        return detail
    renamed = {fields.get(name, name): value for name, value in record.items()}
    return json.dumps({**renamed, **({"state": states[record["state"]]} if record.get("state") in states else {})})


def table_names(connection: sqlite3.Connection) -> set[str]:
    """Return the names of a database's tables."""
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
