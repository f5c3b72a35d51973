"""``opsctl-payload.pyz STAGE --spec spec.json --out results.jsonl``: run one stage, end with an ``end`` record."""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from opsctl.payload import environment
from opsctl.payload.errors import Cancelled, PayloadError
from opsctl.payload.output import Output
from opsctl.payload.records import Spec
from opsctl.payload.sampling import Sampler

_WORKER = "--worker"  # a program that a stage starts from the same file, a process of its own

Run = Callable[[Any, Output], tuple[str, str]]


def _cancel(number: int, _frame: FrameType | None) -> None:
    # Once is enough: a second signal must not interrupt the writing of the end record.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise Cancelled(signal.Signals(number).name)


def run_stage(
    run: Run, spec: Spec, output: Output, *, packages: Sequence[str] = (), variables: Sequence[str] = ()
) -> int:
    """Run a stage to its end record. Return the exit status: 0 verified or not applicable, 1 failed or inconclusive.

    ``packages`` and ``variables`` are recorded with the environment.
    """
    signal.signal(signal.SIGTERM, _cancel)
    signal.signal(signal.SIGINT, _cancel)
    sampler: Sampler | None = None
    try:
        described = environment.describe(packages, variables)
        output.environment(described)
        if described["before"]["gpus"]:
            sampler = Sampler()
            with sampler:
                state, reason = run(spec, output)
        else:
            state, reason = run(spec, output)
    except Cancelled as cancelled:
        state, reason = "inconclusive", f"stopped by {cancelled}"
    except PayloadError as error:
        state, reason = "failed", str(error)
    except Exception as error:  # noqa: BLE001 - the outermost handler: whatever it was, the end record must say so
        traceback.print_exc()
        state, reason = "failed", f"the payload broke: {type(error).__name__}: {error} (see stderr of the unit)"
    output.environment({"after": environment.gpu_state(), **(sampler.environment() if sampler else {})})
    output.end(state, reason)
    return 0 if state in ("verified", "skipped") else 1


def stage_module(name: str) -> ModuleType:
    """Return the module of a stage: that of its name, which has a ``Spec`` and a ``run``. Raises ValueError."""
    try:
        module = importlib.import_module(f"opsctl.payload.{name.replace('-', '_')}")
    except ModuleNotFoundError as error:
        raise ValueError(name) from error
    if not (hasattr(module, "Spec") and hasattr(module, "run")):
        raise ValueError(name)
    return module


def main(argv: list[str] | None = None) -> int:
    """Parse the command line and run."""
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) > 1 and arguments[0] == _WORKER:
        worker: Callable[[list[str]], int] = importlib.import_module(f"opsctl.payload.{arguments[1]}").main
        return worker(arguments[2:])
    parser = argparse.ArgumentParser(prog="opsctl-payload", description=__doc__)
    parser.add_argument("stage", type=stage_module, help="a stage's name, such as gemm")
    parser.add_argument("--spec", type=Path, required=True, help="JSON file: what to measure")
    parser.add_argument("--out", type=Path, required=True, help="JSON Lines file of the results; taken up if it exists")
    parser.add_argument("--packages", nargs="*", default=(), help="whose versions to record, beside torch's and such")
    parser.add_argument("--variables", nargs="*", default=(), help="beginnings of variables to record, beside NCCL_")
    chosen = parser.parse_args(arguments)
    try:
        spec: Spec = chosen.stage.Spec.from_dict(json.loads(chosen.spec.read_bytes()))
    except (OSError, ValueError) as error:
        parser.error(f"the spec cannot be read: {error}")
    run: Run = chosen.stage.run
    with Output(chosen.out.resolve()) as output:
        return run_stage(run, spec, output, packages=chosen.packages, variables=chosen.variables)
