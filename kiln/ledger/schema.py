"""The tables of the ledger."""

from __future__ import annotations

import re

VERSION = 4  # 1 had the table of steps alone; 2 and 3 other names, see `kiln.ledger.migration`
RUNS = """
CREATE TABLE IF NOT EXISTS step (
    key TEXT PRIMARY KEY,
    config TEXT NOT NULL,
    title TEXT NOT NULL,
    finished REAL NOT NULL,
    seconds REAL NOT NULL,
    detail TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS run (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    command TEXT NOT NULL,
    started REAL NOT NULL,
    finished REAL,
    owner TEXT NOT NULL,
    detail TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS config_run (
    run INTEGER NOT NULL REFERENCES run (id),
    config TEXT NOT NULL,
    position INTEGER NOT NULL,
    state TEXT NOT NULL,
    started REAL,
    finished REAL,
    peak_memory INTEGER,
    detail TEXT NOT NULL,
    PRIMARY KEY (run, config)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS config_run_state ON config_run (config, state);
CREATE TABLE IF NOT EXISTS change (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    run INTEGER NOT NULL,
    config TEXT NOT NULL,
    state TEXT NOT NULL,
    at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS artifact (
    path TEXT PRIMARY KEY,
    sha256 TEXT NOT NULL,
    size INTEGER NOT NULL,
    modified INTEGER NOT NULL,
    config TEXT NOT NULL,
    inputs TEXT NOT NULL
) WITHOUT ROWID;
"""
FLEET = """
CREATE TABLE IF NOT EXISTS fleet (
    id TEXT PRIMARY KEY,
    provider TEXT NOT NULL,
    type TEXT NOT NULL,
    started REAL NOT NULL,
    finished REAL,
    owner TEXT NOT NULL,
    number INTEGER NOT NULL,
    key TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS worker (
    fleet TEXT NOT NULL REFERENCES fleet (id),
    name TEXT NOT NULL,
    detail TEXT NOT NULL,
    PRIMARY KEY (fleet, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS job (
    fleet TEXT NOT NULL REFERENCES fleet (id),
    config TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    detail TEXT NOT NULL,
    PRIMARY KEY (fleet, config, attempt)
) WITHOUT ROWID;
"""
TABLES = frozenset(re.findall(r"CREATE TABLE IF NOT EXISTS (\w+)", RUNS + FLEET))

# Configs with their runs, which are rehearsals or builds; queries keep the two kinds apart. The duration of
# a build includes that of the jobs that it continues.
KNOWN = """
CREATE TEMP VIEW known AS
SELECT config_run.*, run.owner, coalesce(json_extract(run.detail, '$.rehearsal'), 0) AS rehearsal,
config_run.finished - config_run.started + coalesce(json_extract(config_run.detail, '$.earlier_seconds'), 0) AS duration
FROM config_run JOIN run ON run.id = config_run.run
"""
