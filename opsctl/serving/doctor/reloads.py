"""Whether ``systemctl daemon-reload`` takes GPUs away from running containers. Pure: what systemctl printed in.

A container's scope carries systemd's own list of devices. Where the container runtime added the GPUs behind
systemd's back, the list lacks them, and a reload (a campaign makes some) applies the list anew
(nvidia-container-toolkit 48, 1227).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from opsctl.serving.doctor.checks import Check, ok, warning

_SCOPE = re.compile(r"(?:docker|libpod|cri-containerd|crio|nerdctl)-[0-9a-f]{12,64}\.scope")
_GPU = re.compile(r"char-nvidia|char-drm|/dev/nvidia|/dev/kfd|/dev/dri|/dev/char/(?:195|226):")
_NUMBER = re.compile(r"/dev/char/(\d+:\d+)$")
_HINT = (
    "name each device in the container's own line (--device=/dev/nvidia0 --device=/dev/nvidiactl …) and run "
    "`nvidia-ctk system create-dev-char-symlinks --create-all` at boot; or give Docker the cgroup driver cgroupfs"
)


def container_scope(unit: str) -> bool:
    """Whether a unit is the scope of a container: its runtime's cgroup driver is then systemd."""
    return _SCOPE.fullmatch(unit) is not None


@dataclass(frozen=True)
class DeviceRules:
    """What systemd allows the processes of a scope. ``nodes`` are the numbers that lie in /dev/char."""

    scope: str
    policy: str
    allowed: tuple[str, ...]
    nodes: frozenset[str]

    @property
    def loses(self) -> bool:
        """Whether applying the rules anew takes the GPUs away. An entry without its node is dropped."""
        if self.policy == "auto" and not self.allowed:
            return False
        numbers = ((path, _NUMBER.match(path)) for path in self.allowed if _GPU.match(path))
        return not any(number is None or number[1] in self.nodes for _, number in numbers)


def parse_rules(text: str) -> list[DeviceRules]:
    """Parse ``systemctl show -p Id -p DevicePolicy -p DeviceAllow SCOPE…`` and a last block ``Nodes=195:0 …``."""
    blocks: list[dict[str, list[str]]] = [{}]
    for line in text.splitlines():
        if not line.strip():
            blocks.append({})
            continue
        name, _, value = line.partition("=")
        blocks[-1].setdefault(name, []).append(value)
    nodes = frozenset(word for block in blocks for value in block.get("Nodes", ()) for word in value.split())
    return [
        DeviceRules(
            scope=block["Id"][0],
            policy=block.get("DevicePolicy", ["auto"])[0],
            allowed=tuple(value.split()[0] for value in block.get("DeviceAllow", ()) if value.strip()),
            nodes=nodes,
        )
        for block in blocks
        if "Id" in block
    ]


def judge_reloads(rules: Iterable[DeviceRules]) -> list[Check]:
    """Judge the scopes of containers that hold GPUs; no check where there is none."""
    every = list(rules)
    if not every:
        return []
    name = "daemon-reload and containers"
    if losing := [one.scope for one in every if one.loses]:
        reason = f"a daemon-reload takes the GPUs away from {', '.join(losing)}: systemd's rules of it name no GPU"
        return [warning(name, reason, _HINT)]
    return [ok(name, f"the GPUs stay with {', '.join(one.scope for one in every)}")]
