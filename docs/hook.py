# ruff: noqa: INP001 - mkdocs loads this file by its path
"""mkdocs hook: pages that are made, not written, so that they cannot be out of date."""

from __future__ import annotations

import inspect
import re
from typing import Any

import typer
from mkdocs.structure.files import File, Files

from opsctl.cli import COMMANDS, build_app
from opsctl.playbook.reference import inventory_reference, playbook_reference

_MARKUP = re.compile(r"\[/?(?:bold|dim|italic|/)?\]")


def on_files(files: Files, config: Any) -> Files:
    """Add the reference to the site."""
    for place, content in (
        ("reference/playbook.md", playbook_reference()),
        ("reference/inventory.md", inventory_reference()),
        ("reference/commands.md", commands_reference()),
    ):
        files.append(File.generated(config, place, content=content))
    return files


def commands_reference() -> str:
    """Return every command with its help, arguments and options."""
    parts = [
        "# Commands\n",
        (
            "Every command takes `--help`, and where it prints something, `--json`: one document on standard output "
            "(`opsctl run` and `opsctl resume`: events as JSON Lines).\n"
        ),
        _EXIT_CODES,
    ]
    for entry in COMMANDS:
        command: Any = typer.main.get_command(build_app(entry.name)).commands[entry.name]  # type: ignore[attr-defined]
        parts += _section(command, f"opsctl {entry.name}", 2)
    return "\n".join(parts)


_EXIT_CODES = """## Exit codes

| code | what it says |
|---|---|
| 0 | verified, and production serves |
| 1 | the campaign failed; production is verified |
| 2 | the playbook, inventory, command line or host is not fit; nothing was touched |
| 3 | **production is not verified: a human, or the armed guard, has to act** |
| 4 | someone else holds the host |
| 5 | inconclusive; production is verified |
| 130 | interrupted; production is verified |
"""


def _section(command: Any, path: str, level: int) -> list[str]:
    parts = [f"{'#' * level} {path}\n", _prose(command.help or "")]
    rows = [row for parameter in command.params if (row := _row(parameter)) is not None]
    if rows:
        parts += ["| argument or option | |", "|---|---|", *rows, ""]
    for name, nested in sorted(getattr(command, "commands", {}).items()):
        parts += _section(nested, f"{path} {name}", level + 1)
    return parts


def _prose(text: str) -> str:
    """Return a command's help as Markdown: what is indented is an example."""
    lines = []
    for line in inspect.cleandoc(text).splitlines():
        plain = _MARKUP.sub("", line)
        lines.append(f"    {plain.strip()}" if line.startswith("  ") else plain)
    return "\n".join(lines) + "\n"


def _row(parameter: Any) -> str | None:
    if getattr(parameter, "hidden", False) or "--help" in parameter.opts:
        return None
    names = parameter.opts + parameter.secondary_opts
    if parameter.param_type_name == "argument":
        shown = f"`{(parameter.metavar or parameter.name or '').upper()}`"
    else:
        shown = ", ".join(f"`{name}`" for name in names)
    about = _MARKUP.sub("", getattr(parameter, "help", None) or "").replace("|", "\\|")
    default = parameter.default
    if default not in (None, False, (), [], "") and not callable(default) and not parameter.required:
        about += f" Default: `{getattr(default, 'value', default)}`."
    return f"| {shown} | {about}{' **Required.**' if parameter.required else ''} |"
