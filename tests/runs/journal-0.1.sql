-- A journal as opsctl 0.1 wrote it: one run that ended, one whose controller died.
CREATE TABLE runs (
  run TEXT PRIMARY KEY, playbook TEXT NOT NULL, file TEXT NOT NULL, controller TEXT NOT NULL, version TEXT NOT NULL,
  definition TEXT NOT NULL, started TEXT NOT NULL, ended TEXT, outcome TEXT NOT NULL DEFAULT 'running',
  exit_code INTEGER, reason TEXT NOT NULL DEFAULT '');
CREATE TABLE hosts (
  run TEXT NOT NULL REFERENCES runs, host TEXT NOT NULL, token INTEGER, boot_id TEXT, production TEXT NOT NULL,
  unit TEXT NOT NULL, as_found TEXT NOT NULL DEFAULT 'unknown', verified INTEGER NOT NULL DEFAULT 0,
  evidence TEXT NOT NULL DEFAULT '[]', down_since TEXT, back_at TEXT, restored_by TEXT NOT NULL DEFAULT '',
  hung_on TEXT NOT NULL DEFAULT '[]', engine_version TEXT,
  environment TEXT NOT NULL DEFAULT '{}', PRIMARY KEY (run, host));
CREATE TABLE phases (
  run TEXT NOT NULL, host TEXT NOT NULL, ordinal INTEGER NOT NULL, round INTEGER NOT NULL, name TEXT NOT NULL,
  serve TEXT NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL DEFAULT '', started TEXT, ended TEXT,
  PRIMARY KEY (run, host, ordinal));
CREATE TABLE steps (
  run TEXT NOT NULL, host TEXT NOT NULL, ordinal INTEGER NOT NULL, position INTEGER NOT NULL, id TEXT NOT NULL,
  stage TEXT NOT NULL, name TEXT NOT NULL, options TEXT NOT NULL, hash TEXT NOT NULL, state TEXT NOT NULL,
  unit TEXT NOT NULL DEFAULT '', started TEXT, ended TEXT, result TEXT, PRIMARY KEY (run, host, ordinal, position));
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
PRAGMA user_version=1;
INSERT INTO runs (run, playbook, file, controller, version, definition, started, ended, outcome, exit_code) VALUES
  ('20261101-0200-aa', 'nightly', 'nightly.yml', 'ann@desk', '0.1.0', '{}', '2026-11-01T02:00:00.000+00:00',
   '2026-11-01T02:30:00.000+00:00', 'verified', 0);
INSERT INTO runs (run, playbook, file, controller, version, definition, started) VALUES
  ('20261102-0200-bb', 'nightly', 'nightly.yml', 'ann@desk', '0.1.0', '{}', '2026-11-02T02:00:00.000+00:00');
INSERT INTO hosts (run, host, token, production, unit, as_found, verified, evidence, hung_on) VALUES
  ('20261101-0200-aa', 'kimi', 1, 'vllm', 'vllm.service', 'serving', 1,
   '[{"asked": "POST /v1/completions", "observed": "4 tokens", "time": "2026-11-01T02:30:00.000+00:00"}]',
   '["router.service"]');
INSERT INTO hosts (run, host, token, production, unit, as_found) VALUES
  ('20261102-0200-bb', 'kimi', 2, 'vllm', 'vllm.service', 'serving');
INSERT INTO phases VALUES
  ('20261101-0200-aa', 'kimi', 0, 1, 'baseline', 'vllm', 'verified', '', '2026-11-01T02:00:10.000+00:00',
   '2026-11-01T02:20:00.000+00:00');
INSERT INTO steps VALUES
  ('20261101-0200-aa', 'kimi', 0, 0, 'baseline/1-command', 'command', 'command', '{"argv": ["true"]}', 'h', 'verified',
   'u.service', '2026-11-01T02:00:10.000+00:00', '2026-11-01T02:20:00.000+00:00',
   '{"stage": "command", "state": "verified", "cells": [{"id": "a", "state": "verified"}]}');
INSERT INTO events (run, time, event, host, phase, step, message, data) VALUES
  ('20261101-0200-aa', '2026-11-01T02:00:00.000+00:00', 'run.begun', '', '', '', 'run', '{}');
