"""What can be said of opsctl-guard without a host: it is clean, portable, and decides nothing by the wall clock."""

from __future__ import annotations

import re
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

import opsctl.host.guard
from opsctl.host.guard import GuardExit
from opsctl.host.guard.control import version

SCRIPT = Path(opsctl.host.guard.__file__).with_name("opsctl-guard")


def code_lines() -> list[str]:
    return [line.split(" # ")[0] for line in SCRIPT.read_text().splitlines() if not line.lstrip().startswith("#")]


def test_its_exit_statuses_are_those_that_the_controller_knows() -> None:
    stops = {int(status) for status in re.findall(r"\bstop (\d+) ", SCRIPT.read_text())}
    assert stops == {int(status) for status in GuardExit}


def test_shellcheck_is_silent() -> None:
    done = subprocess.run(["shellcheck", "--shell=sh", SCRIPT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox"])
def test_every_shell_reads_it(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    argv = [shell, "sh", "-n"] if shell == "busybox" else [shell, "-n"]
    subprocess.run([*argv, SCRIPT], check=True)


def test_the_wall_clock_is_only_written_down() -> None:
    """`date` stands in one function, whose output only ever goes into text for people."""
    assert [line.strip() for line in code_lines() if re.search(r"\bdate\b", line)] == [
        "wall() { date -u +%Y-%m-%dT%H:%M:%SZ; }"
    ]
    uses = [line.strip() for line in code_lines() if "$(wall)" in line]
    assert uses
    assert all(line.startswith(("text=", "L_since=", "L_closed_at=")) for line in uses), uses


def test_nothing_is_evaluated_and_nothing_needs_tmp() -> None:
    text = "\n".join(code_lines())
    assert not re.search(r"\beval\b", text)
    assert "<<" not in text.replace("4 << (", "")
    assert "mktemp" not in text


@pytest.mark.parametrize("tool", ["grep", "sed", "awk", "cut -", "xargs", "find", "python3", "perl", "jq"])
def test_nothing_beyond_coreutils_is_called(tool: str) -> None:
    """grep, sed and awk are not among coreutils; a small image may lack them."""
    text = "\n".join(line for line in code_lines() if not line.lstrip().startswith(("note ", "stop ", "say ")))
    assert not re.search(rf"(^|[|;&({{]|then|do|else|if)\s*{tool}\b", text, re.MULTILINE)


def test_version_is_the_hash_of_the_file() -> None:
    said = subprocess.run(["sh", SCRIPT, "version"], capture_output=True, text=True, check=True).stdout.strip()
    assert said == sha256(SCRIPT.read_bytes()).hexdigest() == version()


@pytest.mark.parametrize("arguments", [(), ("arm", "x"), ("renew",), ("nonsense",), ("exec", "7"), ("show", "me")])
def test_usage(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        ["sh", SCRIPT, *arguments], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 2
    assert "usage:" in done.stderr
