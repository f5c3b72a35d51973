"""The served model's config.json, found by the command line that production runs. Not finding it is no fault."""

from __future__ import annotations

import json
from typing import Any

from opsctl.campaign import limits
from opsctl.deadline import Deadline
from opsctl.errors import HostError
from opsctl.host.protocol import Host
from opsctl.playbook.resolved import ResolvedService

_FLAGS = ("--model", "--model-path")


def model_path(argv: tuple[str, ...]) -> str | None:
    """Return the model's folder from a server's command line: after a flag, or the word after ``serve``."""
    for index, word in enumerate(argv):
        flag, _, value = word.partition("=")
        if flag in _FLAGS:
            return value or (argv[index + 1] if index + 1 < len(argv) else None)
    if "serve" in argv:
        rest = argv[argv.index("serve") + 1 :]
        return rest[0] if rest and not rest[0].startswith("-") else None
    return None


def read_model_config(host: Host, service: ResolvedService) -> dict[str, Any] | None:
    """Return the config.json of the served model, or None where it cannot be known or read."""
    deadline = Deadline(limits.CALL, f"config.json of {service.name} on {host.name}")
    try:
        status = host.systemd().status(service.unit, deadline=deadline)
        path = next((found for argv in status.exec_start if (found := model_path(argv))), None)
        if path is None or not path.startswith("/"):
            return None
        config = json.loads(host.read_file(f"{path.rstrip('/')}/config.json", deadline=deadline))
    except (HostError, ValueError):
        return None
    return config if isinstance(config, dict) else None
