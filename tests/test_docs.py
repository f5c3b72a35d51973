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
import yaml

import opsctl
from opsctl.cli import COMMANDS, build_app
from opsctl.engines import ENGINES

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
_FENCE = re.compile(
    r"(?:<!-- (?P<mark>run[a-z ]*) -->\n)?^```(?P<language>[a-z]*)\n(?P<body>.*?)^```", re.MULTILINE | re.DOTALL
)
_INLINE = re.compile(r"`opsctl ([a-z-]+)(?: ([a-z]+))?[^`]*`")
_SHELLS = {"console", "bash", "sh", "shell"}


@dataclass(frozen=True)
class Command:
    """One command line of a page. ``mark`` is "", "run lab" or "run walk"."""

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


def test_the_run_that_the_readme_shows_is_of_this_version() -> None:
    page = (ROOT / "README.md").read_text()
    (version,) = re.findall(r"^<!-- readme-run: opsctl (\S+) -->\n```console\n\$ opsctl run ", page, re.MULTILINE)
    assert version == opsctl.__version__, "script/readme-run makes it again"


def test_what_the_readme_types_exists() -> None:
    """Each script and file of its shell lines is in the tree, but what a line before it writes."""
    page = (ROOT / "README.md").read_text()
    lines = [line[2:] for fence in _FENCE.finditer(page) for line in fence["body"].splitlines() if line[:2] == "$ "]
    words = [word for line in lines for word in re.findall(r"[\w./-]+", line.partition("  #")[0])]
    typed = {word for word in words if word.startswith(("script/", "playbooks/", "lab/")) or word.endswith(".yml")}
    assert typed >= {"script/demo", "script/setup", "playbooks/profile-campaign.yml"}
    written = {"inventory.yml"} if any("init gpu-07 -o inventory.yml" in line for line in lines) else set()
    assert {word for word in typed - written if not (ROOT / word).exists()} == set()


def test_the_table_of_engines_is_theirs() -> None:
    page = (ROOT / "docs" / "serving.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| ")]
    shown = {row[1].strip("`"): row for row in rows if len(row) == 5 and row[1].startswith("`")}
    for engine in ENGINES.values():
        if engine.name == "standin":
            continue
        title, _, version, running, profiler = shown[engine.name]
        assert title == engine.title
        assert version == (f"`{engine.routes.version[0][0]}`" if engine.routes.version else "not asked")
        assert running == (f"`{engine.routes.running[0]}`" if engine.routes.running else "not asked")
        assert (profiler == "none") == (engine.profile_routes("/", "torch") is None)


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


ELSEWHERE = {
    "schedule": "this machine has no systemd of its own: tests/schedule lets real timers fire in a lab host",
    "resume": "it needs a run that was cut short: the walk through a crash has one",
}
"""Commands of the pages that are run by other tests, and why."""


@dataclass(frozen=True)
class Bench:
    """A lab of its own, and what a shell of its user looks like."""

    lab: Path
    home: Path

    @property
    def inventory(self) -> Path:
        return self.lab / "inventory.yml"

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "HOME": str(self.home),
            "PATH": f"{self.home}/bin:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "OPSCTL_LAB": str(self.lab),
            "XDG_STATE_HOME": str(self.home / "state"),
        }

    def shell(self, script: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=cwd,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )

    def run(self, command: Command, cwd: Path) -> None:
        """Run a line of a page. It must end well."""
        done = self.shell(command.text, cwd)
        said = done.stdout[-2000:] + done.stderr[-3000:]
        assert done.returncode == 0, f"{command.page}:{command.line}: {command.text}\n{said}"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    # A short path: sockets lie below it.
    bench = Bench(Path(tempfile.mkdtemp(prefix="opsctl-docs-")), tmp_path / "home")
    (bench.home / "bin").mkdir(parents=True)
    program = bench.home / "bin" / "opsctl"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m opsctl "$@"\n')
    program.chmod(0o755)
    yield bench
    bench.shell("opsctl lab down", tmp_path)
    shutil.rmtree(bench.lab, ignore_errors=True)


@pytest.mark.lab
@pytest.mark.timeout(900)
def test_the_tutorial_runs_from_its_first_line_to_its_last(bench: Bench, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "tutorial.md").read_text()
    blocks = [fence["body"].replace("$ ", "") for fence in _FENCE.finditer(page) if fence["mark"] == "run lab"]
    shutil.copytree(ROOT / "playbooks", tmp_path / "desk" / "playbooks")
    # One shell, as its reader has: a job that one block starts in the background is killed by a later line.
    done = bench.shell("set -x\n" + "".join(blocks).replace("LAB_INVENTORY", str(bench.inventory)), tmp_path / "desk")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("back and verified") >= 2, done.stdout[-3000:]


def test_the_mistake_that_the_tutorial_makes_is_answered_as_it_says() -> None:
    page = (ROOT / "docs" / "tutorial.md").read_text()
    (wrong,) = [command for command in EVERY if "roudns=1" in command.text]
    words = [word.replace("LAB_INVENTORY", "inventory.yml") for word in wrong.words]
    done = subprocess.run(
        [sys.executable, "-m", "opsctl", *words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    said = done.stderr.splitlines()
    assert said
    assert all(line in page.splitlines() for line in said), said


@pytest.mark.lab
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", ["README.md", "real-host.md", "serving.md", "recovery.md"])
def test_a_page_for_real_hosts_runs_in_order_on_a_host_of_that_name(bench: Bench, page: str, tmp_path: Path) -> None:
    commands = [command for command in EVERY if command.page == page and not command.mark]
    bench.shell("opsctl lab up", tmp_path)
    host = yaml.safe_load(bench.inventory.read_text())["hosts"]["lab1"]
    # ssh reads the configuration of the user's home as the password file has it, not of $HOME.
    own = bench.home / "ssh_config"
    wrapper = bench.home / "bin" / "ssh"
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {own} "$@"\n')
    wrapper.chmod(0o755)
    own.write_text(
        f"Host gpu1 gpu-07\n HostName {host['address']}\n User root\n IdentityFile {host['identity-file']}\n"
        f" UserKnownHostsFile {host['known-hosts']}\n"
    )
    desk = tmp_path / "desk"
    shutil.copytree(ROOT / "playbooks", desk / "playbooks")
    sizes = yaml.safe_dump({"vars": yaml.safe_load(bench.inventory.read_text())["vars"]})

    def small() -> None:
        """What `opsctl init` wrote, with the sizes of two cores."""
        (desk / "inventory.yml").write_text((desk / "inventory.yml").read_text() + sizes)

    if not any(command.words[0] == "init" for command in commands):
        assert bench.shell("opsctl init gpu1", desk).returncode == 0
        small()
        done = bench.shell("opsctl run nightly-snapshot", desk)
        assert done.returncode == 0, done.stderr[-3000:]
    for command in commands:
        if command.words[0] in ELSEWHERE or "-i" in command.words:  # -i: on the lab, by script/demo
            continue
        bench.run(command, desk)
        if command.words[0] == "init":
            small()


@pytest.mark.lab
@pytest.mark.timeout(900)
def test_the_walk_through_a_crash(bench: Bench, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "recovery.md").read_text()
    (walk,) = [fence["body"] for fence in _FENCE.finditer(page) if fence["mark"] == "run walk"]
    script = walk.replace("LAB_INVENTORY", str(bench.inventory)).replace("run profile", f"run {ROOT}/playbooks/profile")
    done = bench.shell(script, tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    died, now, back = (done.stdout.find(words) for words in ("controller died", "does NOT serve", "back and verified"))
    assert 0 <= died < now < back, done.stdout[-3000:]
