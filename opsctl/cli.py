"""The command line: mounts one file of ``opsctl/commands/`` for what was asked, and maps errors to exit codes.

Only the module of the command that runs is imported, so that ``opsctl --help`` and ``opsctl validate``
load neither torch nor Fabric nor GLib.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import typer

from opsctl import __version__
from opsctl.commands.output import clean_output, flush_all, say_error, tell
from opsctl.errors import ExitCode, OpsctlError, as_defect


@dataclass(frozen=True)
class Entry:
    """A command and where it lives. ``help`` is what the list of commands says of it."""

    name: str
    module: str
    attribute: str
    help: str
    panel: str


_RUN, _BACK, _LOOK, _HOSTS, _MORE = "Campaigns", "Production back", "Results", "Hosts", "Around it"

COMMANDS = (
    Entry("run", "run", "run", "Carry a playbook out; production is back and verified at the end.", _RUN),
    Entry("plan", "validate", "plan", "Show what a run would do, from read-only probes; changes nothing.", _RUN),
    Entry(
        "validate", "validate", "validate", "Check a playbook and an inventory: every problem, with its place.", _RUN
    ),
    Entry("schema", "validate", "schema", "Print the JSON Schema of playbooks or inventories, for editors.", _RUN),
    Entry(
        "status", "status", "status", "Show a run: every step and cell, who holds the host, is production back.", _BACK
    ),
    Entry("runs", "runs", "app", "List runs; prune the artifacts of old ones.", _BACK),
    Entry("resume", "recovery", "resume", "Go on with a run whose controller died or lost its link.", _BACK),
    Entry("rollback", "recovery", "rollback", "Restore and verify production of a host, from any machine.", _BACK),
    Entry("collect", "recovery", "collect", "Fetch results that only the host has.", _BACK),
    Entry("lease", "lease", "app", "Show or break the lease on a host.", _BACK),
    Entry("guard", "guard", "app", "Install, show or remove the guard on a host.", _BACK),
    Entry("trace", "trace", "trace", "Say where a decode step's time goes, from a folder of Kineto traces.", _LOOK),
    Entry("report", "report", "report", "Write a run's report, as Markdown or HTML.", _LOOK),
    Entry("compare", "history", "compare", "Compare two runs, or a run with the history's baseline.", _LOOK),
    Entry("history", "history", "history", "Show a metric over nights, with its changes.", _LOOK),
    Entry("export", "history", "export", "Write figures as OpenMetrics, CSV or JSON Lines.", _LOOK),
    Entry("site", "report", "site", "Write a static site over the history.", _LOOK),
    Entry("doctor", "doctor", "doctor", "Examine a host before it is borrowed.", _HOSTS),
    Entry(
        "explain-log", "explain_log", "explain_log", "Say why a load ended, from a saved log; needs no host.", _HOSTS
    ),
    Entry("check", "check", "check", "Show the state of units on a host.", _HOSTS),
    Entry("units", "units", "app", "Derive, compare, install or remove variants' units.", _HOSTS),
    Entry("init", "init", "init", "Write an inventory by asking a host what it runs.", _HOSTS),
    Entry("bench", "bench", "app", "Run one measuring stage on this machine.", _MORE),
    Entry("schedule", "schedule", "app", "Run playbooks at night, by systemd timers.", _MORE),
    Entry("lab", "lab", "app", "Throw-away hosts with a real systemd and a stand-in server.", _MORE),
)

_HOLD_PRODUCTION = {"run", "resume", "rollback"}


def _version(wanted: bool) -> None:  # noqa: FBT001 - Typer calls it so
    if wanted:
        print(f"opsctl {__version__}")
        raise typer.Exit


def build_app(command: str | None) -> typer.Typer:
    """Return the application with the real command that was asked for, and the others by name and help alone."""
    app = typer.Typer(
        name="opsctl",
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def main_options(
        _version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),  # noqa: FBT001
    ) -> None:
        """Take a production model server down, measure, and bring it back, verified, whatever happens."""

    for entry in COMMANDS:
        if entry.name == command:
            _mount(app, entry, getattr(importlib.import_module(f"opsctl.commands.{entry.module}"), entry.attribute))
        else:
            app.command(entry.name, help=entry.help, rich_help_panel=entry.panel)(_unmounted)
    return app


def _mount(app: typer.Typer, entry: Entry, target: Callable[..., Any] | typer.Typer) -> None:
    if isinstance(target, typer.Typer):
        # Its own docstring has the examples; the list of commands, where it is not mounted, has the short text.
        about = target.registered_callback.callback.__doc__ if target.registered_callback else None
        shown = {} if about else {"help": entry.help}
        app.add_typer(target, name=entry.name, rich_help_panel=entry.panel, **shown)  # type: ignore[arg-type]
    else:
        app.command(entry.name, rich_help_panel=entry.panel)(target)


def _unmounted() -> None:
    """Stand for a command that was not asked for."""


def _complete() -> None:
    """Answer a shell that asks what could come after Tab, and exit; only the command that was typed is loaded."""
    from opsctl.commands.completion import attach, command_at_work  # noqa: PLC0415 - only when a shell asks

    command = typer.main.get_command(build_app(command_at_work(os.environ)))
    attach(command)
    command(args=[], prog_name="opsctl")


def main(argv: list[str] | None = None) -> None:
    """Run opsctl and exit with the code that design promises."""
    with clean_output():
        _main(argv)


def _main(argv: list[str] | None) -> None:
    # pydantic would read the metadata of every installed package to find plugins, none of which is ours.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    arguments = sys.argv[1:] if argv is None else argv
    command = next((word for word in arguments if not word.startswith("-")), None)
    try:
        if "_OPSCTL_COMPLETE" in os.environ:
            _complete()
        build_app(command)(args=arguments, prog_name="opsctl")
    except OpsctlError as error:
        say_error(error, as_json="--json" in arguments)
        sys.exit(int(error.exit_code))
    except SystemExit as ended:
        # Typer ends with 1 where the reader went away (opsctl … | head). Nothing of ours failed, where nothing was
        # at work; what holds production says by its own evidence how it ended, or that nothing is known.
        if isinstance(ended.__context__, BrokenPipeError):
            sys.exit(int(ExitCode.PRODUCTION_NOT_VERIFIED if command in _HOLD_PRODUCTION else ExitCode.VERIFIED))
        raise
    except Exception as error:
        # A traceback is no message for a person. What was begun is in the journal; production is the guard's.
        if "OPSCTL_TRACEBACK" in os.environ:
            raise
        defect = as_defect(error)
        say_error(defect, as_json="--json" in arguments)
        sys.exit(int(defect.exit_code))
    except KeyboardInterrupt:
        tell("interrupted")
        sys.exit(int(ExitCode.INTERRUPTED))
    finally:
        flush_all()
