"""Playbooks and inventories for the tests, written to a folder."""

from __future__ import annotations

import textwrap
from pathlib import Path

from opsctl.errors import DefinitionError
from opsctl.playbook.inventory import LoadedInventory, load_inventory

INVENTORY = """
hosts:
  gpu1: {address: 10.0.0.1, vars: {rounds: 1}}
  gpu2: {}
  spare: {}
groups:
  kimi: [gpu1, gpu2]
  all-kimi: [kimi]
services:
  prod:
    on: kimi
    unit: vllm-prod.service
    url: http://127.0.0.1:8000
    model: kimi-k2.5
    api-key-file: /etc/vllm/key
    tensor-parallel: 8
    readiness: {limit: 60m, completions: 5}
    stop: {drain: 30s}
    traffic: {out: [lb, out], in: [lb, in]}
  prod-profiler:
    of: prod
    profiler: torch
    readiness: {limit: 90m}
  prod-ep: {of: prod, url: "http://127.0.0.1:8001", args: {add: [--enable-expert-parallel]}}
  other: {on: spare, url: "http://127.0.0.1:8000", model: other}
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


def inventory_at(folder: Path, text: str = INVENTORY) -> LoadedInventory:
    return load_inventory(write(folder, "inventory.yml", text))


def said(error: DefinitionError) -> list[str]:
    """Return problems as LINE:COLUMN: MESSAGE."""
    return [f"{one.line}:{one.column}: {one.message}" for one in error.problems]
