"""``opsctl explain-log``: why a load ended, from a saved log."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from opsctl.errors import UnfitError

_WORDS = {
    "serves": "the server came up",
    "stopped": "the server was told to stop; nothing before that says that it failed",
    "ends": "the server ended, or was about to",
    "loading": "the load goes on, or the log ends before it is decided",
}
_SHOWN = 40


def explain_log(
    file: Annotated[Path, typer.Argument(help="The log, as journalctl, docker or kubectl prints it; - reads stdin.")],
    engine: Annotated[str | None, typer.Option("--engine", help="Which server wrote it; default: guessed.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """Explain a saved log of a model server's load: phases, what moved, and why it ended. Needs no host.

    Exit code 0 whatever the log says; 2 when it cannot be read.

    [bold]Examples[/bold]

      journalctl -u vllm -b -o cat | opsctl explain-log -

      opsctl explain-log server.log --engine sglang --json
    """
    import json
    from dataclasses import asdict

    from opsctl.engines import ENGINES
    from opsctl.serving.load.explaining import explain

    if engine is not None and engine not in ENGINES:
        raise typer.BadParameter(f"{engine}: one of {', '.join(ENGINES)}", param_hint="--engine")
    try:
        text = sys.stdin.read() if str(file) == "-" else _read(file)
    except OSError as error:
        raise UnfitError(f"{file} cannot be read", seen=error.strerror or str(error)) from error
    said = explain(text, ENGINES[engine] if engine else None)
    if json_:
        print(json.dumps(asdict(said), indent=2))
        return
    print(f"engine  {ENGINES[said.engine].title} {said.version or ''}".rstrip())
    print(f"phases  {' → '.join(said.phases)}")
    for moved in said.movements[:_SHOWN]:
        at = "" if moved.seconds is None else f"{moved.seconds:8.0f} s"
        print(f"  line {moved.line:<6}{at:>10}  {moved.phase.value}: {moved.text}")
    if len(said.movements) > _SHOWN:
        print(f"  … {len(said.movements) - _SHOWN} more (--json shows all)")
    print(f"at the end  {said.state}")
    print(f"verdict  {_WORDS[said.verdict]}")
    if said.cause is not None and said.verdict in {"ends", "loading"}:
        again = "another attempt can help" if said.cause.transient else "another attempt does not help"
        print(f"{'cause' if said.verdict == 'ends' else 'cause, if it died'}   {said.cause.name} ({again})")
        for line in said.quoted:
            print(f"  | {line}")
        print(f"hint    {said.cause.advice}")


def _read(file: Path) -> str:
    """Return a log as it was written: the carriage returns of its progress bars are no lines of their own."""
    with file.open(encoding="utf-8", errors="replace", newline="") as opened:
        return opened.read()
