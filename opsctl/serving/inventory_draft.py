"""An inventory as text, from what a host was found to serve: the file that ``opsctl init`` writes. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

from opsctl.engines import DEFAULT
from opsctl.playbook.models import HostEntry
from opsctl.serving.discovery import FoundServer, HostFound

_WORDS = {"true", "false", "null", "yes", "no", "on", "off"}
"""Words that YAML does not read as text."""


def inventory_text(host_name: str, group: str, entry: HostEntry, found: HostFound) -> str:
    """Return an inventory as YAML with comments: what was found, and what a person has to decide."""
    productions = [server for server in found.servers if server.active]
    lines = ["# Written by `opsctl init`. Read it: what could not be known is a comment.", "hosts:", f"  {host_name}:"]
    lines += [f"    {key}: {_scalar(value)}" for key, value in _written(entry).items()]
    pythons = sorted({server.python for server in productions if server.python})
    if pythons:
        lines.append(f"    python: {pythons[0]}     # of the serving environment")
        lines += [f"    # another server runs with {other}" for other in pythons[1:]]
    else:
        lines.append("    # python: /opt/vllm/bin/python     # of the serving environment: torch and vLLM are there")
    if found.gpus is not None:
        lines.append(f"    gpus: {found.gpus}")
    if len(productions) > 1:
        first = service_name(productions[0])
        lines.append(f"    production: [{first}]     # several serve here: these are taken down and brought back")
    lines += ['    # alert: [/usr/local/bin/page, "opsctl: production is not back"]', "", "groups:"]
    lines += [f"  {group}: [{host_name}]     # playbooks say `hosts: {group}`", "", "services:"]
    if not productions:
        lines[-1] = "# services: no model server runs on the host"
    for server in productions:
        lines += _service_lines(server)
    lines += [
        f"# {server.unit} does not run: {server.engine}, {server.model}"
        for server in found.servers
        if not server.active
    ]
    return "\n".join(lines) + "\n"


def plain_name(text: str) -> str:
    """Return a name that the inventory may hold, made of any text."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", text).strip("-._") or "host"


def service_name(server: FoundServer) -> str:
    """Return a service's name: its unit without the suffix, as the inventory may spell it."""
    return plain_name(server.unit.removesuffix(".service"))


def _service_lines(server: FoundServer) -> list[str]:
    name = service_name(server)
    lines = [f"  {name}:"]
    lines += [f"    # {line}" for line in _comments(server)]
    lines.append(f"    unit: {_scalar(server.unit)}")
    if server.engine != DEFAULT:
        lines.append(f"    engine: {server.engine}")
    known = "" if server.serving else "     # from the command line: the server did not tell"
    lines += [
        f"    url: {server.url}",
        f"    model: {_scalar(server.model) if server.model else ''}{known}",
        f"    tensor-parallel: {server.tensor_parallel}",
    ]
    if server.needs_key:
        lines.append("    # It wants a key: name a file on the host that holds it. The key itself stays there.")
    lines += [
        f"    {'' if server.needs_key else '# '}api-key-file: /etc/{server.engine}/api-key",
        "    readiness: {limit: 60m}     # longer than the slowest load",
        "    # stop: {drain: 60s}        # wait for running requests first",
        "    # traffic: {out: [lb, drain, HOST], in: [lb, enable, HOST], check: [lb, is-enabled, HOST]}",
        f"  {name}-profiler: {{of: {name}, profiler: torch}}",
    ]
    return lines


def _comments(server: FoundServer) -> list[str]:
    """Return what a person should know of how the server is started; a plain command line says it by itself."""
    lines = [server.understood] if server.understood not in {"", "started in ExecStart"} else []
    return lines + ([f"No variant can be made of it: {server.refused}"] if server.refused else [])


def _written(entry: HostEntry) -> dict[str, Any]:
    """Return what the entry says beyond the defaults, by the keys of the file."""
    said = entry.model_dump(by_alias=True, exclude_defaults=True, mode="json")
    return {key: said[key] for key in entry.model_dump(by_alias=True) if key in said} or {"address": entry.address}


def _scalar(value: object) -> str:
    """Return a value as YAML that reads back as the same; JSON is YAML."""
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z/][\w./@%+-]*", value) and value.lower() not in _WORDS
    return str(value) if plain else json.dumps(value)
