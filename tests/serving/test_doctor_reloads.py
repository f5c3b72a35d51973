"""Which rules of a container's scope lose the GPUs at a daemon-reload: by a table of what systemctl prints."""

from __future__ import annotations

import pytest

from opsctl.serving.doctor import Verdict
from opsctl.serving.doctor.reloads import container_scope, judge_reloads, parse_rules

SCOPE = f"docker-{'ab' * 32}.scope"
USUAL = ("/dev/char/1:3 rwm", "/dev/char/5:0 rwm", "char-pts rwm")


def shown(policy: str, *allowed: str, nodes: str = "1:3 5:0") -> str:
    lines = [f"Id={SCOPE}", f"DevicePolicy={policy}", *(f"DeviceAllow={one}" for one in allowed), "", f"Nodes={nodes}"]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (shown("strict", *USUAL), Verdict.WARNING),
        (shown("closed"), Verdict.WARNING),
        (shown("auto", *USUAL), Verdict.WARNING),
        (shown("auto"), Verdict.OK),
        (shown("auto", ""), Verdict.OK),
        (shown("strict", *USUAL, "/dev/nvidia0 rw", "/dev/nvidiactl rw"), Verdict.OK),
        (shown("strict", *USUAL, "char-nvidia rw"), Verdict.OK),
        (shown("strict", *USUAL, "/dev/char/195:0 rw"), Verdict.WARNING),
        (shown("strict", *USUAL, "/dev/char/195:0 rw", nodes="1:3 195:0 195:255"), Verdict.OK),
        (shown("strict", *USUAL, "/dev/kfd rw", "/dev/dri/renderD128 rw"), Verdict.OK),
    ],
)
def test_rules_that_lose_gpus(text: str, verdict: Verdict) -> None:
    (check,) = judge_reloads(parse_rules(text))
    assert check.verdict is verdict
    assert SCOPE in check.reason
    assert ("create-dev-char-symlinks" in check.hint) is (verdict is Verdict.WARNING)


def test_one_losing_scope_of_several_is_named_and_none_is_no_check() -> None:
    other = SCOPE.replace("ab", "cd")
    text = shown("strict", *USUAL).replace("\nNodes", f"\nId={other}\nDevicePolicy=auto\n\nNodes")
    (check,) = judge_reloads(parse_rules(text))
    assert SCOPE in check.reason
    assert other not in check.reason
    assert judge_reloads(parse_rules("Nodes=1:3\n")) == []


@pytest.mark.parametrize(
    ("unit", "is_one"),
    [
        (SCOPE, True),
        (f"libpod-{'0' * 64}.scope", True),
        (f"cri-containerd-{'0' * 64}.scope", True),
        ("docker.service", False),
        ("session-1.scope", False),
        (f"libpod-conmon-{'0' * 64}.scope", False),
    ],
)
def test_a_containers_scope(unit: str, is_one: bool) -> None:
    assert container_scope(unit) is is_one
