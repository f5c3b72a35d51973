"""The paced server of benchmarks/, as a process of its own, for tests that want a real one."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PACED = Path(__file__).parents[2] / "benchmarks" / "paced_server.py"


@contextmanager
def paced_server(*arguments: str, ttft: float = 0.01, interval: float = 0.002) -> Iterator[str]:
    """Yield the URL of a running server."""
    argv = [sys.executable, str(PACED), "--ttft", str(ttft), "--interval", str(interval), *arguments]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())  # the first line is written once it listens
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(10)


def stamps(url: str) -> dict[str, Any]:
    """Return what the server saw."""
    with urllib.request.urlopen(f"{url}/stamps", timeout=10) as answer:  # noqa: S310 - a URL of ours
        document: dict[str, Any] = json.load(answer)
    return document


def run_payload(stage: str, spec: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Run a payload's stage as a process; return its records."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spec.json").write_text(json.dumps(spec))
    subprocess.run(
        [sys.executable, "-m", "opsctl.payload", stage, "--spec", "spec.json", "--out", "results.jsonl"],
        cwd=folder,
        timeout=100,
        check=False,
    )
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def cells(records: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the last record of each cell."""
    return {record["id"]: record for record in records if record["record"] == "cell"}


def figures(cell: dict[str, Any]) -> dict[str, float]:
    """Return a cell's figures by name."""
    return {figure["name"]: figure["value"] for figure in cell["figures"]}
