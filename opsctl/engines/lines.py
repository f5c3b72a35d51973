"""One line of a server's log, taken apart: who relayed it, its level, its logger, its time, and what it says.

Loggers, launchers and container runtimes put prefixes before a line, several at once. They are stripped here, so
that every table below sees the same text however the server was started.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum


class Level(IntEnum):
    """How bad the writer thought a line was. ``PLAIN``: no level is given, as in a traceback."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    PLAIN = 35
    ERROR = 40


@dataclass(frozen=True)
class Line:
    """A line without its prefixes."""

    text: str
    """What was written, level and logger taken off."""
    level: Level = Level.PLAIN
    logger: str = ""
    """File or module that wrote it, such as ``core.py``; "" where it is not given."""
    source: str = ""
    """Prefixes that were taken off: which process, rank or container it is."""
    pid: int | None = None
    """Process that a prefix names; in a container not the host's number."""
    echo: bool = False
    """A shell's ``set -x``, an assignment of an environment dump, or a record of a request: not the server's word."""
    time: float | None = None
    """Seconds, from the line's own stamp; comparable within one log only."""


LONGEST = 4000
"""Characters of a line that are looked at: configurations are dumped in lines of any length."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_PREFIXES = (
    # docker compose: `vllm-1  | `; kubectl logs --prefix: `[pod/vllm-0/server] `
    re.compile(r"[\w.-]+\s+\| (?=\S)"),
    re.compile(r"\[pod/[^\]]+\]\s*"),
    # kubectl --timestamps, CRI and docker logs -t; journalctl -o short and short-iso
    re.compile(r"(?P<iso>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)[.,\d]*(?:Z|[+-]\d\d:?\d\d)\s+(?:std(?:out|err) [FP] )?"),
    re.compile(r"(?P<short>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) \S+ [\w.@-]+\[\d+\]: "),
    re.compile(r"(?:\S+ )?[\w.@-]+\[\d+\]: "),
    # vLLM: `(EngineCore_DP0 pid=60) `; Ray: `(RayWorkerWrapper pid=70, ip=10.0.0.2) `
    re.compile(r"\([^()]*\bpid=(?P<pid>\d+)[^()]*\)\s*"),
    # torchrun: `[rank0]:`, `[default0]:`
    re.compile(r"\[(?:rank|default)\d+\]:\s*"),
    # mpirun --tag-output: `[1,0]<stderr>: `
    re.compile(r"\[\d+,\d+\]<std(?:out|err)>:\s*"),
)
_LEVELS = {
    "T": Level.DEBUG,
    "D": Level.DEBUG,
    "I": Level.INFO,
    "W": Level.WARNING,
    "E": Level.ERROR,
    "F": Level.ERROR,
    "C": Level.ERROR,
    "V": Level.DEBUG,
}
_WORD = r"(?P<level>DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL|TRACE|VERBOSE)"
_HEADS = (
    # vLLM: `ERROR 10-03 10:02:30 [core.py:708] `; 0.6: `INFO 11-02 10:00:00 api_server.py:528] `
    re.compile(rf"{_WORD} (?P<vllm>\d\d-\d\d \d\d:\d\d:\d\d)(?:\.\d+)? \[?(?P<logger>[\w./-]+?)(?::\d+)?\] ?"),
    # logging's own format: `2026-03-03 10:02:00,100 - WARNING - autotuner.py:490 - flashinfer.jit: `
    re.compile(
        rf"(?P<iso>\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d)[,.\d]*\s+-\s+{_WORD}\s+-\s+(?P<logger>\S+?)(?::\d+)?\s+-\s+"
    ),
    re.compile(rf"(?P<iso>\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d)[,.\d]*\s+-\s+(?P<logger>[\w.]+)\s+-\s+{_WORD}\s+-\s+"),
    # TensorRT-LLM: `[01/05/2026-10:00:00] [TRT-LLM] [E] `
    re.compile(r"\[(?P<trt>\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d)\] \[TRT(?:-LLM)?\] \[(?P<letter>[A-Z])\] "),
    re.compile(r"\[(?:TRT-LLM|TensorRT-LLM)\]\s*\[(?P<letter>[A-Z])(?:NFO|RROR|ARNING|EBUG)?\]\s*(?:\[RANK \d+\] ?)?"),
    # glog and torch: `E0303 10:02:00.000000 200 torch/_inductor/select_algorithm.py:2691] [8/0] `
    re.compile(
        r"\[?(?P<letter>[IWEFV])(?P<glog>\d{4} \d\d:\d\d:\d\d)\.\d+ +\d+ (?P<logger>\S+?):\d+\] (?:\[\d+/\d+\] )?"
    ),
    # SGLang: `[2026-01-05 10:00:12 TP4] `, then sometimes a level
    re.compile(rf"\[(?P<iso>\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d)[^\]]*\] (?:{_WORD}: +)?"),
    # NCCL: `gpu1:200:200 [0] NCCL INFO `
    re.compile(rf"\S+:\d+:\d+ \[\d+\] (?:\S+:\d+ )?(?P<logger>NCCL) {_WORD} "),
    # uvicorn and the root logger: `INFO:     `, `ERROR:uvicorn.error:`
    re.compile(rf"{_WORD}:\s*"),
)
_ECHO = re.compile(
    r"\++ \S|(?:declare -x |export )?[A-Za-z_]\w*=\S*|(?:Receive|Finish): obj=|Received request |server_args=|environ\("
)
_QUOTED = re.compile(r"(?<!\w)'[^']*'(?!\w)|(?<!\w)\"[^\"]*\"")


def split(text: str) -> tuple[str, ...]:
    """Return the lines that a terminal would have shown one after the other, without colours."""
    parts = _ANSI.sub("", text).replace("\n", "\r").split("\r")
    return tuple(part.strip()[:LONGEST] for part in parts if part.strip())


def parse(text: str) -> Line:
    """Take one line apart. Never fails: what is not known stays in the text."""
    source, pid, time, rest = "", None, None, text
    while match := next((found for prefix in _PREFIXES if (found := prefix.match(rest))), None):
        groups = match.groupdict()
        pid = int(groups["pid"]) if groups.get("pid") else pid
        time = _time(groups) or time
        source, rest = source + match[0], rest[match.end() :]
    if unpacked := _unpack(rest):
        rest = unpacked
    level, logger = Level.PLAIN, ""
    if head := next((found for pattern in _HEADS if (found := pattern.match(rest))), None):
        groups = head.groupdict()
        named = groups.get("level") or groups.get("letter")
        level = _LEVELS[named[0]] if named else level
        logger = (groups.get("logger") or "").rpartition("/")[2]
        time = _time(groups) or time
        rest = rest[head.end() :]
    echo = _ECHO.match(rest) is not None
    return Line(rest, level, logger, source, pid, echo, time)


def unquoted(text: str) -> str:
    """Return a text without what stands in quotation marks: prompts, paths, settings and other people's words."""
    return _QUOTED.sub("''", text)


def _unpack(text: str) -> str:
    """Return level and message of a JSON record as a plain line; "" for any other text."""
    if not text.startswith("{"):
        return ""
    try:
        record = json.loads(text)
    except ValueError:
        return ""
    if not isinstance(record, dict):
        return ""
    said = record.get("message") or record.get("msg") or record.get("event")
    level = str(record.get("level") or record.get("levelname") or record.get("severity") or "INFO").upper()
    return f"{level}: {said}" if said else ""


def _time(groups: dict[str, str | None]) -> float | None:
    formats = (
        ("iso", "%Y-%m-%d %H:%M:%S", ""),
        ("vllm", "%Y-%m-%d %H:%M:%S", "2000-"),
        ("glog", "%Y%m%d %H:%M:%S", "2000"),
        ("trt", "%m/%d/%Y-%H:%M:%S", ""),
        ("short", "%Y %b %d %H:%M:%S", "2000 "),
    )
    for name, pattern, year in formats:
        if written := groups.get(name):
            try:
                stamp = datetime.strptime(year + written.replace("T", " "), pattern)  # noqa: DTZ007 - differences only
            except ValueError:
                return None
            return (stamp - datetime(2000, 1, 1)).total_seconds()  # noqa: DTZ001
    return None
