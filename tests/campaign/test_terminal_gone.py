"""Law 5: nothing that happens to the terminal matters. Real terminals and pipes; production serves at the end."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opsctl.lab.hosts import LabHost
from opsctl.lab.units import Standin
from tests.campaign.conftest import Desk, answers

pytestmark = pytest.mark.lab
SLEEP = {"command": {"argv": ["/bin/sleep", "300"]}}
SHORT = {"command": {"argv": ["/bin/sleep", "3"]}}


def heard() -> None:
    """Have the signals of a terminal their usual effect, whatever the suite itself was started with (nohup)."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)


def prepared(desk: Desk, step: dict[str, Any]) -> list[str]:
    desk.playbook["phases"] = [{"name": "alone", "serve": "nothing", "steps": [step]}]
    desk.write()
    return desk.argv("run", "small.yml")


def await_(true: Callable[[], bool], what: str, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def measuring(desk: Desk) -> bool:
    """Whether production is down and the step runs, as the journal says: no terminal tells us."""
    document = desk.opsctl("status", "--json")
    record = json.loads(document.out) if document.out.startswith("{") else {}
    return any(step["state"] == "running" for phase in record.get("phases", ()) for step in phase["steps"])


class OnTerminal:
    """opsctl on a terminal of its own, as the leader of its session: what a closed window does to it is real."""

    def __init__(self, desk: Desk, argv: list[str]) -> None:
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            heard()
            os.chdir(desk.folder)
            os.execve(argv[0], argv, desk.environment(TERM="xterm"))  # noqa: S606 - it takes this process's place

    def read_for(self, seconds: float = 0.2) -> bytes:
        """Take what was printed: a terminal that nobody reads is full after 4 KiB."""
        os.set_blocking(self.terminal, False)
        end, said = time.monotonic() + seconds, b""
        while time.monotonic() < end:
            try:
                said += os.read(self.terminal, 65536)
            except BlockingIOError:
                time.sleep(0.02)
            except OSError:
                break
        return said

    def ended(self) -> bool:
        """Whether opsctl has ended well."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return bool(pid) and os.waitstatus_to_exitcode(status) == 0

    def code(self, seconds: float = 90) -> int:
        """Wait for the end; return the exit status."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.1)
        os.kill(self.pid, signal.SIGKILL)
        raise AssertionError("opsctl does not end")


def test_a_terminal_that_is_closed_ends_the_run_and_production_is_back(desk: Desk, serving_host: LabHost) -> None:
    """The window is closed in mid-step: HUP, and EIO on whatever is printed from then on."""
    run = OnTerminal(desk, prepared(desk, SLEEP))
    await_(lambda: bool(run.read_for()) and measuring(desk), "the step")
    os.close(run.terminal)
    assert run.code() == 130
    assert answers(serving_host, Standin())
    record = desk.status()
    assert (record["outcome"], record["production"][0]["verified"]) == ("interrupted", True)


def test_ctrl_c_on_a_pipeline_with_tee(desk: Desk, serving_host: LabHost) -> None:
    """Ctrl-C reaches tee, too: it dies, and all that opsctl prints of its restore meets a pipe without a reader."""
    argv = prepared(desk, SLEEP)
    script = '"$@" 2>&1 | tee seen.log; echo "status ${PIPESTATUS[0]}" >status'
    run = OnTerminal(desk, ["/bin/bash", "-ic", f"trap : INT; {script}", "sh", *argv])
    await_(lambda: bool(run.read_for()) is not None and measuring(desk), "the step")
    os.write(run.terminal, b"\x03")
    status = desk.folder / "status"
    await_(lambda: run.read_for() is not None and status.exists(), "the end of the run")
    assert status.read_text() == "status 130\n"
    assert answers(serving_host, Standin())


@pytest.mark.parametrize("kind", ["closed", "full"])
def test_standard_output_that_takes_nothing(desk: Desk, serving_host: LabHost, kind: str) -> None:
    argv = prepared(desk, SHORT)
    redirection = {"closed": ">&- 2>&-", "full": ">/dev/full 2>&1"}[kind]
    done = subprocess.run(
        ["/bin/sh", "-c", f'"$@" {redirection}', "sh", *argv],
        cwd=desk.folder, env=desk.environment(), check=False, timeout=100, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0
    assert desk.status()["outcome"] == "verified"
    assert answers(serving_host, Standin())


def test_a_terminal_that_takes_nothing_holds_up_no_run(desk: Desk, serving_host: LabHost) -> None:
    """Ctrl-S, or a window that is suspended: it is full after 4 KiB, and whoever writes then waits."""
    run = OnTerminal(desk, prepared(desk, SHORT))
    await_(lambda: measuring(desk), "the step")
    await_(lambda: desk.status()["outcome"] != "running", "the end of the run, with nothing read")
    assert answers(serving_host, Standin())
    await_(lambda: run.read_for(0.5) is not None and run.ended(), "the end of opsctl, once its words are read")
    assert desk.status()["outcome"] == "verified"


def test_nohup_lets_a_run_go_on_without_its_terminal(desk: Desk, serving_host: LabHost, tmp_path: Path) -> None:
    """The terminal closes in mid-step, and the run measures to its end."""
    argv = prepared(desk, {"command": {"argv": ["/bin/sleep", "5"]}})
    log = tmp_path / "nohup.log"
    script = f'nohup "$@" >{log} 2>&1 </dev/null & echo $! >pid; wait'
    shell = OnTerminal(desk, ["/bin/bash", "-c", script, "sh", *argv])
    await_(lambda: measuring(desk), "the step")
    os.close(shell.terminal)
    await_(lambda: desk.status()["outcome"] != "running", "the end of the run")
    assert desk.status()["outcome"] == "verified", log.read_text()[-2000:]
    assert answers(serving_host, Standin())
    os.waitpid(shell.pid, 0)
