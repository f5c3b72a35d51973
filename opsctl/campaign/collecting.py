"""Fetching what a step left on its host, each file proven whole by its size and hash."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from opsctl.campaign import limits
from opsctl.deadline import Deadline
from opsctl.host.protocol import Host
from opsctl.results import Artifact

_ALWAYS = ("results.jsonl", "stdout.log", "stderr.log")


def collect_folder(host: Host, folder: str, into: Path, globs: Sequence[str]) -> tuple[Artifact, ...]:
    """Fetch results.jsonl, the logs and whatever matches ``globs`` below a step's folder on the host.

    ``into`` is the step's folder below the run's folder on the controller; artifacts are named relative to the
    latter. Raises HostError.
    """
    listing = host.run(
        ["find", folder, "-type", "f", "-printf", r"%P\0"],
        deadline=Deadline(limits.CALL, f"list of {folder} on {host.name}"),
        check=False,
    )
    artifacts = []
    for name in sorted(filter(None, listing.stdout.decode(errors="replace").split("\0"))):
        if not any(fnmatch(name, pattern) for pattern in (*_ALWAYS, *globs)):
            continue
        local = into / name
        local.parent.mkdir(parents=True, exist_ok=True)
        deadline = Deadline(limits.TRANSFER, f"fetch of {name} from {host.name}")
        record = host.get(f"{folder}/{name}", local, deadline=deadline)
        artifacts.append(Artifact(path=f"{into.name}/{name}", size=record.size, sha256=record.sha256, kind=_kind(name)))
    return tuple(artifacts)


def _kind(name: str) -> str:
    if name.endswith((".pt.trace.json", ".pt.trace.json.gz")):
        return "trace"
    if fnmatch(Path(name).name, "trace-*.json"):
        return "trace-analysis"
    return "log" if name.endswith(".log") else "results" if name == "results.jsonl" else "file"
