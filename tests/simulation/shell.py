"""The real guard script in a shell that stays: each command runs in a subshell, each visible operation asks us first.

What the script does to the world outside (systemctl, its lease on disk and in /run, its lock, detached work, the boot
clock) is a shell function here that writes a line and waits for the answer. So a run can be held, or ended, at each.
All else is the script as it is.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import IO, cast

_DISPATCH = "suffix=''\nclear_lease\n"
"""Where the script's definitions end and its command begins."""

_SEAM = r"""
STATE=$SIM/disk MIRROR=$SIM/run
op() { printf '%s\n' "$1" >&3; IFS= read -r answer <&4; }
lines() { # the answer's lines, which travel as one
  IFS='|'
  for part in $answer; do printf '%s\n' "$part"; done
  unset IFS
}
sctl() {
  asked=sctl
  for argument in "$@"; do asked="$asked $argument"; done # $* would join by whatever IFS is now
  op "$asked"
  case $answer in 0*) ;; *) return 1 ;; esac
  answer=${answer#0}
  [ -z "$answer" ] || lines
}
save() {
  L_seq=$((L_seq + 1))
  render >"$SIM/lease.out"
  op "save ${1:-run}"
  [ "$answer" = ok ]
}
load() {
  op load
  text=''
  while IFS= read -r one; do text=$text$one$NL; done <"$SIM/lease.in"
  parse "$text"
}
clock() { op clock; now=$answer; }
boot() { op boot; printf '%s' "$answer"; }
lock() { op lock; [ "$answer" = ok ] || stop 8 "the lock is taken"; }
unlock() { op unlock; }
note() { op "note $1"; }
begin() { op "begin $1"; pid=$answer; }
outcome() { op "outcome $1 ${2:-$L_probe}"; printf '%s' "$answer"; }
seen_by() { :; }
line_of() { printf '%s' "${1%%"$NL"*}"; } # one line, as it is there: each operation travels as one
wall() { echo wall; }
switch_on() { op "switch on"; }
switch_off() { op "switch off"; }
cat() { while IFS= read -r one; do printf '%s\n' "$one"; done <"$1"; }
id() { echo 0; }
curl() { :; }
mkdir() { :; }
rm() { :; }
sync() { :; }
show() { show_lease; }
"""


class GuardShell:
    """One shell with the guard's functions. ``run`` yields each visible operation and is sent its answer."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="opsctl-simulation-", dir="/dev/shm"))
        for name in ("disk", "run"):
            (self.folder / name).mkdir()
        self.status = 0
        script = resources.files("opsctl.host.guard").joinpath("opsctl-guard").read_text(encoding="utf-8")
        head, found, dispatch = script.partition(_DISPATCH)
        if not found:
            raise ValueError(f"the guard's dispatch does not begin with {_DISPATCH!r} any more")
        program = f"{head}\n{_SEAM}\nmain() {{\n{_DISPATCH}{dispatch}\n}}\n"
        program += (
            'while IFS= read -r line; do ( eval "main $line" ) >"$SIM/out" 2>"$SIM/err"; echo "end $?" >&3; done\n'
        )
        (self.folder / "guard").write_text(program)
        asks, wants = os.pipe()
        answers, gives = os.pipe()

        def arrange() -> None:  # a small shell names no descriptor above 9
            high = [fcntl.fcntl(end, fcntl.F_DUPFD, 100) for end in (wants, answers)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self._process = subprocess.Popen(
            ["sh", str(self.folder / "guard")], stdin=subprocess.PIPE, pass_fds=(3, 4), preexec_fn=arrange,  # noqa: PLW1509
            env={"SIM": str(self.folder), "PATH": os.environ["PATH"]},
        )  # fmt: skip
        os.close(wants)
        os.close(answers)
        self._asks, self._gives = os.fdopen(asks, "r"), os.fdopen(gives, "w", buffering=1)

    def run(self, command: str) -> Iterator[str]:
        """Run one command of the guard; send each operation's answer in. Its exit status is then in ``status``."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n".encode())
        self._process.stdin.flush()
        while True:
            line = self._asks.readline().rstrip("\n")
            if line.startswith("end ") or not line:
                self.status = int(line[4:] or 1)
                return
            answer = yield line
            self._gives.write(f"{answer}\n")

    @property
    def said(self) -> tuple[bytes, bytes]:
        """What the last command wrote to its two streams."""
        return (self.folder / "out").read_bytes(), (self.folder / "err").read_bytes()

    def close(self) -> None:
        """End the shell and remove its folder."""
        self._process.kill()
        self._process.wait()
        for end in (self._process.stdin, self._asks, self._gives):
            with contextlib.suppress(OSError):
                cast("IO[bytes]", end).close()
        shutil.rmtree(self.folder, ignore_errors=True)
