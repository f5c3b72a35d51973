"""The journal's tables. A change of them grows SCHEMA_VERSION and adds a step to MIGRATIONS."""

from __future__ import annotations

SCHEMA_VERSION = 3
SCHEMA = """
CREATE TABLE runs (
  run TEXT PRIMARY KEY, playbook TEXT NOT NULL, file TEXT NOT NULL, controller TEXT NOT NULL, version TEXT NOT NULL,
  definition TEXT NOT NULL, started TEXT NOT NULL, ended TEXT, outcome TEXT NOT NULL DEFAULT 'running',
  exit_code INTEGER, reason TEXT NOT NULL DEFAULT '', interrupted INTEGER NOT NULL DEFAULT 0,
  error TEXT NOT NULL DEFAULT '', error_code INTEGER);
CREATE TABLE hosts (
  run TEXT NOT NULL REFERENCES runs, host TEXT NOT NULL, token INTEGER, boot_id TEXT, production TEXT NOT NULL,
  unit TEXT NOT NULL, as_found TEXT NOT NULL DEFAULT 'unknown', verified INTEGER NOT NULL DEFAULT 0,
  evidence TEXT NOT NULL DEFAULT '[]', down_since TEXT, back_at TEXT, restored_by TEXT NOT NULL DEFAULT '',
  dependents TEXT NOT NULL DEFAULT '[]', triggers TEXT NOT NULL DEFAULT '[]', engine_version TEXT,
  environment TEXT NOT NULL DEFAULT '{}', failure TEXT NOT NULL DEFAULT '', left_down INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (run, host));
CREATE TABLE phases (
  run TEXT NOT NULL, host TEXT NOT NULL, ordinal INTEGER NOT NULL, round INTEGER NOT NULL, name TEXT NOT NULL,
  serve TEXT NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL DEFAULT '', started TEXT, ended TEXT,
  PRIMARY KEY (run, host, ordinal));
CREATE TABLE steps (
  run TEXT NOT NULL, host TEXT NOT NULL, ordinal INTEGER NOT NULL, position INTEGER NOT NULL, id TEXT NOT NULL,
  stage TEXT NOT NULL, name TEXT NOT NULL, options TEXT NOT NULL, hash TEXT NOT NULL, state TEXT NOT NULL,
  unit TEXT NOT NULL DEFAULT '', started TEXT, ended TEXT, result TEXT, PRIMARY KEY (run, host, ordinal, position));
CREATE TABLE actions (
  run TEXT NOT NULL, host TEXT NOT NULL, plan INTEGER NOT NULL, ordinal INTEGER NOT NULL, id TEXT NOT NULL,
  kind TEXT NOT NULL, branch TEXT NOT NULL, phase INTEGER, sentence TEXT NOT NULL, state TEXT NOT NULL,
  reason TEXT NOT NULL DEFAULT '', attempts INTEGER NOT NULL DEFAULT 0, started TEXT, ended TEXT,
  evidence TEXT NOT NULL DEFAULT '[]', PRIMARY KEY (run, host, plan, ordinal));
CREATE TABLE mutations (
  id INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL, host TEXT NOT NULL, action TEXT NOT NULL,
  subject TEXT NOT NULL, begun TEXT NOT NULL, ended TEXT, outcome TEXT, detail TEXT NOT NULL DEFAULT '{}');
CREATE TABLE loads (
  id INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL, host TEXT NOT NULL, service TEXT NOT NULL,
  unit TEXT NOT NULL, version TEXT, attempt INTEGER NOT NULL, started TEXT NOT NULL, ready TEXT, seconds REAL,
  phases TEXT NOT NULL DEFAULT '{}', outcome TEXT NOT NULL DEFAULT '');
CREATE TABLE holds (
  id INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL, host TEXT NOT NULL, holder TEXT NOT NULL,
  role TEXT NOT NULL, started TEXT NOT NULL, ended TEXT);
CREATE TABLE variants (run TEXT NOT NULL, service TEXT NOT NULL, differences TEXT NOT NULL, PRIMARY KEY (run, service));
CREATE TABLE events (
  id INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL, time TEXT NOT NULL, event TEXT NOT NULL,
  host TEXT NOT NULL, phase TEXT NOT NULL, step TEXT NOT NULL, message TEXT NOT NULL, data TEXT NOT NULL);
CREATE INDEX events_of_run ON events (run, id);
"""

_ACTIONS = SCHEMA[SCHEMA.index("CREATE TABLE actions") : SCHEMA.index("CREATE TABLE mutations")].strip().rstrip(";")

MIGRATIONS: dict[int, tuple[str, ...]] = {
    # From 0.1: what a run's exit code is derived from was not recorded, and a run had no actions.
    1: (
        "ALTER TABLE hosts RENAME COLUMN hung_on TO dependents",
        "ALTER TABLE hosts ADD COLUMN failure TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE hosts ADD COLUMN left_down INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE runs ADD COLUMN interrupted INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE runs ADD COLUMN error TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE runs ADD COLUMN error_code INTEGER",
        _ACTIONS,
    ),
    # What starts production was kept among its dependents.
    2: ("ALTER TABLE hosts ADD COLUMN triggers TEXT NOT NULL DEFAULT '[]'",),
}
"""By the version found: the statements that make the next version of it."""
