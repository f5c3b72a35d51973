"""The documentation: it builds with no broken link, every command in it is one, and what is marked runs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from opsctl.cli import COMMANDS, build_app

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
_FENCE = re.compile(
    r"(?:<!-- (?P<mark>run[a-z ]*) -->\n)?^```(?P<language>[a-z]*)\n(?P<body>.*?)^```", re.MULTILINE | re.DOTALL
)
_INLINE = re.compile(r"`opsctl ([a-z]+)(?: ([a-z]+))?[^`]*`")
_SHELLS = {"console", "bash", "sh", "shell"}


@dataclass(frozen=True)
class Command:
    """One command line of a page. ``mark`` is "", "run" or "run lab"."""

    page: str
    line: int
    text: str
    mark: str

    @property
    def words(self) -> list[str]:
        """The words after ``opsctl``, without redirections and job control."""
        lexer = shlex.shlex(self.text, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True  # with punctuation_chars: ">file" and "cmd;" come apart as a shell takes them
        words = list(lexer)[1:]
        cut = next((place for place, word in enumerate(words) if set(word) <= set("&|;<>()")), len(words))
        return words[:cut]


def commands() -> Iterator[Command]:
    for page in PAGES:
        text = page.read_text()
        for fence in _FENCE.finditer(text):
            if fence["language"] not in _SHELLS:
                continue
            first = text.count("\n", 0, fence.start("body")) + 1
            lines = fence["body"].splitlines()
            prompted = any(line.startswith("$ ") for line in lines)
            for number, line in enumerate(lines):
                shown = line.removeprefix("$ ") if line.startswith("$ ") else "" if prompted else line
                shown = re.sub(r"^(?:sudo |\.venv/bin/)+", "", shown)
                if shown.startswith("opsctl "):
                    yield Command(page.name, first + number, shown, fence["mark"] or "")


EVERY = list(commands())


def parse(words: list[str]) -> None:
    """Parse a command line as the real one does, up to the call. Raises a usage error of the parser."""
    command: Any = typer.main.get_command(build_app(words[0]))
    context = command.make_context("opsctl", list(words))
    while hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        if not rest:
            return
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)


def test_there_are_commands_to_look_at() -> None:
    assert len(EVERY) > 20
    assert {command.mark for command in EVERY} >= {"", "run lab"}


@pytest.mark.parametrize("command", EVERY, ids=lambda command: f"{command.page}:{command.line}")
def test_every_command_in_the_documentation_parses(command: Command) -> None:
    parse(command.words)


def test_a_command_that_is_none_would_be_seen() -> None:
    with pytest.raises(Exception, match=r"[Nn]o such option"):
        parse(["validate", "--no-such-option"])
    with pytest.raises(Exception, match=r"[Nn]o such command"):
        parse(["lab", "explode"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_named_in_prose_exist(page: Path) -> None:
    names = {entry.name for entry in COMMANDS}
    for name, _ in _INLINE.findall(page.read_text()):
        assert name in names, f"{page.name} names `opsctl {name}`"


def test_every_command_has_help_with_an_example() -> None:
    bare = []
    for entry in COMMANDS:
        group: Any = typer.main.get_command(build_app(entry.name))
        command = group.commands[entry.name]
        texts = [command.help or "", *(nested.help or "" for nested in getattr(command, "commands", {}).values())]
        if not any(f"opsctl {entry.name}" in text for text in texts):
            bare.append(entry.name)
    assert bare == []


def test_the_site_builds_with_no_broken_link(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pages = {str(path.relative_to(tmp_path / "site")) for path in (tmp_path / "site").rglob("*.html")}
    assert {"index.html", "tutorial.html", "reference/commands.html", "reference/playbook.html"} <= pages
    assert "flush-limit" in (tmp_path / "site" / "reference" / "playbook.html").read_text()


@pytest.mark.lab
@pytest.mark.timeout(900)
def test_what_is_marked_as_run_runs_in_order(tmp_path: Path) -> None:
    # A short path: sockets lie below it.
    folder = Path(tempfile.mkdtemp(prefix="opsctl-docs-"))
    environment = {**os.environ, "OPSCTL_LAB": str(folder), "XDG_STATE_HOME": str(tmp_path / "state")}
    inventory = folder / "inventory.yml"

    def opsctl(*words: str) -> subprocess.CompletedProcess[str]:
        shown = [str(inventory) if word == "LAB_INVENTORY" else word for word in words]
        return subprocess.run(
            [sys.executable, "-m", "opsctl", *shown],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    try:
        for command in EVERY:
            if command.mark == "run lab":
                done = opsctl(*command.words)
                assert done.returncode == 0, f"{command.page}:{command.line}: {done.stderr[-2000:]}"
    finally:
        opsctl("lab", "down")
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.lab
@pytest.mark.timeout(900)
def test_the_walk_through_a_crash(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "recovery.md").read_text()
    (walk,) = [fence["body"] for fence in _FENCE.finditer(page) if fence["mark"] == "run walk"]
    folder = Path(tempfile.mkdtemp(prefix="opsctl-walk-"))
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "opsctl").write_text(f'#!/bin/sh\nexec {sys.executable} -m opsctl "$@"\n')
    (programs / "opsctl").chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OPSCTL_LAB": str(folder),
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    script = walk.replace("LAB_INVENTORY", str(folder / "inventory.yml")).replace(
        "run profile", f"run {ROOT}/playbooks/profile"
    )
    try:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
    finally:
        subprocess.run([str(programs / "opsctl"), "lab", "down"], env=environment, capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    died, now, back = (done.stdout.find(words) for words in ("controller died", "does NOT serve", "back and verified"))
    assert 0 <= died < now < back, done.stdout[-3000:]
