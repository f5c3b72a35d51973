from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opsctl.campaign.artifacts import Collected
from opsctl.campaign.stage_result import Ending, with_ending
from opsctl.errors import DeadlineExceeded, Interrupted, OpsctlError
from opsctl.host.protocol import UnitStatus
from opsctl.results import Artifact, Cell, State, StepResult

END: dict[str, Any] = {"record": "end", "state": "verified"}
GONE = UnitStatus("u.service", "not-found", "inactive", "dead")
FAILED = UnitStatus("u.service", "loaded", "failed", "failed", result="exit-code")
DIED = "the stage died: it exited with an error (Result=exit-code): last words"


def judged(state: State = State.VERIFIED) -> StepResult:
    cells = (Cell(id="a", state=State.VERIFIED), Cell(id="b", state=State.PENDING))
    return StepResult(stage="gemm", state=state, cells=cells)


@pytest.mark.parametrize(
    ("records", "status", "cut_short", "state", "reason"),
    [
        ([END], GONE, None, State.VERIFIED, ""),
        ([], FAILED, None, State.FAILED, DIED),
        ([{"record": "cell"}], FAILED, None, State.FAILED, DIED),
        ([END], GONE, Interrupted("SIGINT received"), State.FAILED, "SIGINT received"),
        ([], GONE, DeadlineExceeded("gemm did not end within 60 s"), State.FAILED, "gemm did not end within 60 s"),
    ],
)
def test_what_the_host_says_of_the_end_decides(
    tmp_path: Path,
    *,
    records: list[dict[str, Any]],
    status: UnitStatus,
    cut_short: OpsctlError | None,
    state: State,
    reason: str,
) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "stderr.log").write_text("first\nlast words\n")
    artifacts = (Artifact(path="x/stderr.log", size=17, sha256="", kind="log"),)
    result = with_ending(judged(), Ending("u.service", status, records, Collected(artifacts), tmp_path, cut_short))
    assert (result.state, result.reason) == (state, reason)
    assert result.evidence[-1].asked == "how u.service ended"
    assert result.artifacts == artifacts
    if state is State.FAILED:
        assert [cell.state for cell in result.cells] == [State.VERIFIED, State.FAILED]


@pytest.mark.parametrize(
    ("result", "stderr", "kernel", "reason"),
    [
        (
            "oom-kill", "", "Out of memory: Killed process 71 (python)",
            "the kernel's OOM killer ended it (Result=oom-kill): kernel: Out of memory: Killed process 71 (python)",
        ),
        ("timeout", "", "", "its time limit on the host ended it (Result=timeout)"),
        ("signal", "", "", "a signal ended it (Result=signal)"),
        (
            "exit-code", "OSError: [Errno 28] No space left on device", "",
            "the disk is full; it exited with an error (Result=exit-code): OSError: [Errno 28] No space left on device",
        ),
        ("exit-code", "MemoryError", "", "it exited with an error (Result=exit-code): MemoryError"),
    ],
)  # fmt: skip
def test_the_cause_is_named_with_its_evidence(
    tmp_path: Path, *, result: str, stderr: str, kernel: str, reason: str
) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "stderr.log").write_text(stderr)
    artifacts = (Artifact(path="x/stderr.log", size=len(stderr), sha256="", kind="log"),)
    status = UnitStatus("u.service", "loaded", "failed", "failed", result=result)
    ending = Ending("u.service", status, [], Collected(artifacts), tmp_path, kernel=kernel)
    assert with_ending(judged(), ending).reason == f"the stage died: {reason}"
