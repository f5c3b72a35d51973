"""The house as docs/architecture.md draws it: imports run downwards, borders are kept, help is light."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "opsctl"

# A room may import rooms of a lower floor only; modules at the top of the package are the foundations.
FLOORS = {
    "engines": 1,
    "playbook": 2,
    "trace": 1,
    "payload": 2,
    "stages": 3,
    "plan": 4,
    "snapshots": 4,
    "host": 4,
    "report": 5,
    "serving": 5,
    "notifications": 6,
    "runs": 6,
    "schedule": 6,
    "lab": 6,
    "terminal": 8,
    "campaign": 7,
    "recovery": 8,
    "commands": 9,
    "cli": 10,
    "__main__": 11,
}
FOUNDATION = 0
PURE = {"engines", "playbook", "plan", "trace", "report", "snapshots", "stages", "payload"}
TOUCHES_HOSTS = {"host", "serving", "campaign", "recovery", "lab"}

# Libraries that one place alone knows, so that their errors and habits stay behind that border.
BORDERS = {
    "fabric": ("host/",),
    "paramiko": ("host/",),
    "invoke": ("host/",),
    "pydbus": ("host/systemd.py",),
    "gi": ("host/",),
    "tenacity": ("retrying.py",),
    "apprise": ("notifications",),
    "plotly": ("report/",),
    "jinja2": ("playbook/expressions.py", "report/", "schedule/", "serving/"),
    "uvicorn": ("lab/",),
    "starlette": ("lab/",),
    "torch": ("payload/", "lab/"),
}
# Loading one of these takes longer than `opsctl --help` may.
HEAVY = {"torch", "fabric", "paramiko", "gi", "pydbus", "plotly", "numpy", "httpx", "apprise", "sqlite3"}
FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, module) of every import, those inside functions too; ``from opsctl import x`` as opsctl.x."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            module = node.module or ""
            if module == "opsctl":
                yield from ((node.lineno, f"opsctl.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, module


def test_there_is_something_to_look_at() -> None:
    assert len(FILES) > 40
    assert {room_of(path) for path in FILES} >= {"playbook", "plan", "host", "serving", "campaign", "commands"}


@pytest.mark.parametrize("room", sorted({room_of(path) for path in FILES}))
def test_imports_run_downwards(room: str) -> None:
    floor = FLOORS.get(room, FOUNDATION)
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {room} imports {module}"
        for path in FILES
        if room_of(path) == room
        for line, module in imports_of(path)
        if module.startswith("opsctl.")
        and (other := module.split(".")[1]) != room
        and FLOORS.get(other, FOUNDATION) >= max(floor, 1)
    ]
    assert wrong == []


@pytest.mark.parametrize("room", sorted(PURE))
def test_pure_rooms_know_no_host(room: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {module}"
        for path in FILES
        if room_of(path) == room
        for line, module in imports_of(path)
        if module.startswith("opsctl.") and module.split(".")[1] in TOUCHES_HOSTS
    ]
    assert wrong == []


@pytest.mark.parametrize("library", sorted(BORDERS))
def test_a_library_stays_behind_its_border(library: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {module}"
        for path in FILES
        for line, module in imports_of(path)
        if module.split(".")[0] == library and not str(path.relative_to(PACKAGE)).startswith(BORDERS[library])
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["validate", "profile-campaign", "--json"],
        ["schema", "inventory"],
        ["plan", "--help"],
        ["run", "--help"],
    ],
    ids=" ".join,
)
def test_what_needs_no_host_loads_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import json, sys\n"
        "from opsctl.cli import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "except SystemExit as end:\n    code = end.code or 0\nelse:\n    code = 0\n"
        "print(json.dumps([code, sorted({name.split('.')[0] for name in sys.modules})]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    code, loaded = json.loads(done.stdout.splitlines()[-1])
    assert code == 0
    assert HEAVY & set(loaded) == set()
