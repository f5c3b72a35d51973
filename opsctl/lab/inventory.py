"""The lab's inventory: what ``opsctl -i`` takes, for hosts that serve a stand-in."""

from __future__ import annotations

from typing import Any

import yaml

from opsctl.lab.hosts import LabHost
from opsctl.lab.units import ENVIRONMENT, Server

# The same playbook as on an 8-GPU host, with sizes for two ranks on two cores. Names are the playbooks' own vars.
LAB_VARS: dict[str, Any] = {
    "model": "served",
    "tensor_parallel": 2,
    "concurrency": [1, 2, 4],
    "tokens": [1, 8],
    "input_tokens": 64,
    "output_tokens": 16,
    "rounds": 1,
    "protocols": ["default"],
    "profile_concurrency": [1],
    "profile_windows": 2,
    "profile_output_tokens": 16,
    "repetitions": 10,
}


def host_entry(host: LabHost, *, python: str = f"{ENVIRONMENT}/bin/python", gpus: int | None = 2) -> dict[str, Any]:
    """Return a host of the inventory."""
    entry: dict[str, Any] = {
        "address": host.address,
        "user": host.spec.login,
        "port": 22,
        "identity-file": str(host.identity_file),
        "known-hosts": str(host.known_hosts),
        "python": python,
    }
    entry |= {} if gpus is None else {"gpus": gpus}
    return entry | ({"become": True} if host.spec.login != "root" else {})


def service_entries(standin: Server, *, on: str | None = None) -> dict[str, Any]:
    """Return production and its profiler variant, with limits for loads of seconds."""
    production: dict[str, Any] = {
        "url": standin.url,
        "model": standin.served,
        "tensor-parallel": standin.tensor_parallel,
        "readiness": {"limit": f"{round(120 + standin.load_seconds)}s", "settle": "1s", "request-limit": "60s"},
        "stop": {"limit": "90s", "gpu-limit": "20s"},
    }
    variant = {"role": "variant", "of": standin.unit, "profiler": "torch"}
    placed = {"on": on} if on else {}
    return {standin.unit: production | placed, f"{standin.unit}-profiler": variant | placed}


def inventory(
    hosts: list[LabHost],
    standin: Server,
    *,
    python: str = f"{ENVIRONMENT}/bin/python",
    gpus: int | None = None,
) -> dict[str, Any]:
    """Return an inventory of lab hosts that all serve the same, as group ``kimi``."""
    return {
        "vars": LAB_VARS,
        "hosts": {host.name: host_entry(host, python=python, gpus=gpus) for host in hosts},
        "groups": {"kimi": [host.name for host in hosts]},
        "services": service_entries(standin),
    }


def as_yaml(document: dict[str, Any]) -> str:
    """Return the inventory's text."""
    head = "# Written by `opsctl lab up`: throw-away hosts that serve a stand-in. Gone with `opsctl lab down`.\n"
    return head + yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=120)
