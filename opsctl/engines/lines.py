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

# With the escape, as syslog spells it (#033), or without one, as logs are pasted.
_ANSI = re.compile(r"(?:\x1b|#033)\[[0-9;?]*[ -/]*[@-~]|\[\d{1,2}(?:;\d{1,3})*m(?![\d:\]<])")
_PREFIXES = (
    # compose of docker, podman: `vllm-1  | `, `[vllm]     | `; pm2: `0|vllm  | `; kubectl: `[pod/vllm-0/server] `
    re.compile(r"(?:\d+\|)?(?:[\w.-]+|\[[\w.-]+\])\s+\| (?=\S)"),
    re.compile(r"\[pod/[^\]]+\]\s*"),
    # Akash, foreman: `[vllm]: `
    re.compile(r"\[[a-z][a-z0-9.-]*\]:\s+"),
    # kubectl --timestamps, CRI and docker logs -t; journalctl -o short and short-iso
    re.compile(r"(?P<iso>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)[.,\d]*(?:Z|[+-]\d\d:?\d\d)\s+(?:std(?:out|err) [FP] )?"),
    re.compile(r"(?P<short>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)(?:\.\d+)? \S+ \(?[\w.@-]+\)?\[\d+\]:\s"),
    re.compile(r"(?:\S+ )?\(?[\w.@-]+\)?\[\d+\]:\s"),
    # Docker Desktop and other relays: a stamp before whatever was written
    re.compile(r"(?P<iso>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d+)? +(?![-|\s])(?!INFO |WARN|ERROR |DEBUG )"),
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
    # loguru: `2026-03-03 10:02:00.100 | ERROR    | vllm.x:load:12 - `
    re.compile(rf"(?P<iso>\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d)[.\d]*\s+\|\s+{_WORD}\s+\|\s+(?P<logger>[\w.]+)\S* - "),
    # Rust's tracing, of which the relay took the stamp: `INFO shard-manager: text_generation_launcher: `
    re.compile(rf"{_WORD} (?:[\w-]+(?:\{{.*?\}})?:)*? ?(?P<logger>text_generation\w*)(?:::\w+)*: "),
    # Ray's own: `2026-02-26 11:14:54,614 INFO worker.py:1636 -- `
    re.compile(rf"(?P<iso>\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d)[.,\d]* +{_WORD} (?P<logger>\S+?):\d+ -- "),
    # TensorRT-LLM: `[01/05/2026-10:00:00] [TRT-LLM] [RANK 0] [E] `
    re.compile(
        r"\[(?P<trt>\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d)\] \[TRT(?:-LLM)?\] (?:\[RANK \d+\] )?\[(?P<letter>[A-Z])\] "
    ),
    # TensorRT-LLM's and LMDeploy's C++: `[TensorRT-LLM][ERROR] `, `[TM][INFO] `
    re.compile(
        r"\[(?:TRT-LLM|TensorRT-LLM|TM)\]\s*\[(?P<letter>[A-Z])(?:NFO|RROR|ARNING|EBUG|ATAL)?\]\s*(?:\[RANK \d+\] ?)?"
    ),
    # glog and torch: `E0303 10:02:00.000000 200 torch/_inductor/select_algorithm.py:2691] [8/0] `
    re.compile(
        r"\[?(?P<letter>[IWEFV])(?P<glog>\d{4} \d\d:\d\d:\d\d)\.\d+ +\d+ (?P<logger>\S+?):\d+\] (?:\[\d+/\d+\] )?"
    ),
    # llama.cpp with --log-timestamps: `0.00.342.123 I `
    re.compile(r"(?P<llama>\d+\.\d\d)\.\d{3}\.\d{3} (?P<letter>[IWED]) "),
    # SGLang: `[2026-01-05 10:00:12 TP4] `, then sometimes a level
    re.compile(rf"\[(?P<iso>\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d)[^\]]*\] (?:{_WORD}: +)?"),
    # NCCL: `gpu1:200:200 [0] NCCL INFO `
    re.compile(rf"\S+:\d+:\d+ \[\d+\] (?:\S+:\d+ )?(?P<logger>NCCL) {_WORD} "),
    # the root logger, `ERROR:uvicorn.error:`, and uvicorn, `INFO:     `
    re.compile(rf"{_WORD}:(?P<logger>[a-zA-Z_][\w.-]*):\s*"),
    re.compile(rf"{_WORD}:\s*"),
)
_ECHO = re.compile(r"(?:Receive|Finish): obj=|Received request |server_args=|environ\(")
_SHELL = re.compile(r"\++ \S|(?:declare -x |export )?[A-Za-z_]\w*=\S*")
"""At the beginning of a line that no logger wrote."""
_QUOTED = re.compile(r"(?<!\w)'[^']*'(?!\w)|(?<!\w)\"[^\"]*\"")


def split(text: str) -> tuple[str, ...]:
    """Return the lines that a terminal would have shown one after the other, without colours."""
    parts = _ANSI.sub("", text).replace("\n", "\r").split("\r")
    return tuple(part.strip()[:LONGEST] for part in parts if part.strip())


def parse(text: str) -> Line:
    """Take one line apart. Never fails: what is not known stays in the text.

    A relay may put a head of its own before a line that has one: the inner level and logger are the server's.
    """
    source, pid, time, rest = "", None, None, text
    level, logger, logged = Level.PLAIN, "", False
    while True:
        if match := _first(_PREFIXES, rest):
            groups = match.groupdict()
            pid = int(groups["pid"]) if groups.get("pid") else pid
            source += match[0]
        elif match := _first(_HEADS, rest):
            groups = match.groupdict()
            named = groups.get("level") or groups.get("letter")
            level = _LEVELS[named[0]] if named else Level.PLAIN
            logger = (groups.get("logger") or logger).rpartition("/")[2]
            logged = True
        elif unpacked := _unpack(rest):
            rest = unpacked
            continue
        else:
            break
        time = _time(groups) or time
        rest = rest[match.end() :]
    echo = _ECHO.match(rest) is not None or (not logged and _SHELL.match(rest) is not None)
    return Line(rest, level, logger, source, pid, echo, time)


def _first(patterns: tuple[re.Pattern[str], ...], text: str) -> re.Match[str] | None:
    return next((found for pattern in patterns if (found := pattern.match(text))), None)


def unquoted(text: str) -> str:
    """Return a text without what stands in quotation marks: prompts, paths, settings and other people's words."""
    return _QUOTED.sub("''", text)


def _unpack(text: str) -> str:
    """Return level and message of a JSON record as a plain line; "" for any other text. Docker's own is ``log``."""
    if not text.startswith("{"):
        return ""
    try:
        record = json.loads(text)
    except ValueError:
        return ""
    if not isinstance(record, dict):
        return ""
    if isinstance(record.get("log"), str):
        return str(record["log"]).strip()
    inner = record["fields"] if isinstance(record.get("fields"), dict) else {}
    said = record.get("message") or record.get("msg") or record.get("event") or inner.get("message")
    level = str(record.get("level") or record.get("levelname") or record.get("severity") or "INFO").upper()
    return f"{level}: {said}" if said else ""


def _time(groups: dict[str, str | None]) -> float | None:
    """Return the seconds of a stamp. Loggers that leave the year out stand beside others that do not: all take one."""
    formats = (
        ("iso", "%Y-%m-%d %H:%M:%S", ""),
        ("vllm", "%Y-%m-%d %H:%M:%S", "2000-"),
        ("glog", "%Y%m%d %H:%M:%S", "2000"),
        ("trt", "%m/%d/%Y-%H:%M:%S", ""),
        ("short", "%Y %b %d %H:%M:%S", "2000 "),
    )
    if since := groups.get("llama"):  # minutes and seconds since the start
        minutes, _, seconds = since.partition(".")
        return 60.0 * int(minutes) + int(seconds)
    for name, pattern, year in formats:
        if written := groups.get(name):
            try:
                stamp = datetime.strptime(year + written.replace("T", " "), pattern)  # noqa: DTZ007 - differences only
            except ValueError:
                return None
            return (stamp.replace(year=2000) - datetime(2000, 1, 1)).total_seconds()  # noqa: DTZ001
    return None
