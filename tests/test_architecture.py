"""The house as docs/architecture.md draws it: imports run downwards, borders are kept, help is light."""

from __future__ import annotations

import ast
import json
import re
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
    "trace": 1,
    "payload": 2,
    "stages": 3,
    "playbook": 4,
    "plan": 5,
    "snapshots": 5,
    "host": 5,
    "report": 6,
    "serving": 6,
    "notifications": 7,
    "runs": 7,
    "schedule": 7,
    "lab": 7,
    "terminal": 9,
    "campaign": 8,
    "recovery": 9,
    "commands": 10,
    "cli": 11,
    "__main__": 12,
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


def too_new(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, what) of what Python 3.9 does not run, beside syntax that it does not parse."""
    annotations = {
        id(below)
        for node in ast.walk(tree)
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if part is not None
        for below in ast.walk(part)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Match):
            yield node.lineno, "match"
        if isinstance(node, ast.Call):
            words = {word.arg for word in node.keywords}
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name == "zip" and "strict" in words:
                yield node.lineno, "zip(strict=)"
            if name == "dataclass" and words & {"slots", "kw_only"}:
                yield node.lineno, "dataclass(slots=, kw_only=)"
            if name in {"bisect_left", "bisect_right", "insort"} and "key" in words:
                yield node.lineno, f"{name}(key=)"
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and id(node) not in annotations:
            sides = {side.id for side in (node.left, node.right) if isinstance(side, ast.Name)}
            sides |= {str(side.value) for side in (node.left, node.right) if isinstance(side, ast.Constant)}
            if sides & {"str", "int", "float", "bytes", "bool", "list", "dict", "tuple", "None"}:
                yield node.lineno, "X | Y of types at run time"
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (node.module, alias.name) in NEWER_THAN_3_9:
                    yield node.lineno, f"{node.module}.{alias.name}"


NEWER_THAN_3_9 = {
    ("itertools", "pairwise"), ("itertools", "batched"), ("enum", "StrEnum"), ("datetime", "UTC"),
    ("typing", "Self"), ("typing", "TypeAlias"), ("typing", "ParamSpec"), ("typing", "assert_never"),
    ("typing", "override"), ("asyncio", "timeout"), ("asyncio", "TaskGroup"), ("contextlib", "aclosing"),
}  # fmt: skip


def test_what_the_zipapp_carries_runs_on_python_3_9() -> None:
    """Debian 11 has it. tests/payload/test_bundle.py also runs the file on each Python that is installed."""
    carried = [path for path in FILES if room_of(path) in {"payload", "trace", "errors", "deadline"}]
    assert len(carried) > 40
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for path in carried
        for line, what in too_new(ast.parse(path.read_text(), str(path), feature_version=(3, 9)))
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


def test_the_picture_of_the_house_has_every_room_and_no_other() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    picture = page.split("```")[1]
    drawn = set(re.findall(r"\b([a-z]+)/", picture.replace("guard/", "")))
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert drawn == rooms
    missing = {room for room in FLOORS if room not in rooms | {"__main__"} and room not in picture}
    assert missing == set(), "modules of a floor of their own stand in the picture too"
    assert len(page.splitlines()) <= 100


@pytest.mark.parametrize("room", sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py")))
def test_each_room_says_what_it_is_for_and_what_may_not_enter(room: str) -> None:
    said = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text())) or ""
    purpose, _, border = said.partition("\n")
    assert purpose.endswith((".", ":"))
    assert re.search(r"\b(only|never|no|neither|nothing|not)\b", border, re.IGNORECASE), border


def test_each_path_of_the_house_exists() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`((?:[a-z_]+/)+[\w.-]*|[a-z_]+\.(?:py|toml))`", page.replace("NAME", "vllm")))
    named -= {"stages/vllm.py", "payload/vllm.py", "commands/vllm.py", "host/vllm.py"}
    assert len(named) > 30
    bases = (PACKAGE, ROOT)
    assert {path for path in named if not any((base / path).exists() for base in bases)} == set()
