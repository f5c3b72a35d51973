"""What launch lines start, and the same lines after an edit: a table, real shells, and properties."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.errors import UnfitError
from opsctl.serving.launch.containers import rename_in
from opsctl.serving.launch.execline import ExecCommand, format_exec, parse_exec
from opsctl.serving.launch.line import Launch, NotSeen, Surroundings, understand
from opsctl.serving.launch.words import Files, matches

DATA = Path(__file__).parents[2] / "data" / "launch"
SCRIPTS = {f"/srv/{path.name}": path.read_text() for path in (DATA / "scripts").iterdir()}
KNOWN = {"MODEL": "/models/kimi", "PORT": "8000", "EXTRA_ARGS": "--max-num-seqs 64 --port 8000"}
AROUND = Surroundings(variables=KNOWN, read=SCRIPTS.get, copies="/run/copies")


@dataclass
class Row:
    line: str
    argv: list[str] | None = None
    after: str | None = None
    refused: str | None = None
    copies: list[str] = field(default_factory=list)


def edited(launch: Launch) -> tuple[tuple[str, ...], Files]:
    """Return the line with the table's edit."""
    contained = launch.container is not None
    leading = ("-e", "A=b $c") if contained else ("env", "A=b $c")
    name = "variant" if contained else ""
    return launch.edited((*launch.argv, "--seed", "7"), where="here", leading=leading, name=name)


def rows() -> Iterator[Row]:
    row: Row | None = None
    for text in (DATA / "lines.txt").read_text().splitlines():
        kind, _, rest = text.partition(" ")
        if kind == ">":
            if row is not None:
                yield row
            row = Row(rest)
        elif row is not None and kind == "=":
            row.argv = shlex.split(rest)
        elif row is not None and kind == "+":
            row.after = rest
        elif row is not None and kind == "!":
            row.refused = rest
        elif row is not None and kind == "|":
            row.copies.append(rest)
    assert row is not None
    yield row


ROWS = list(rows())


def test_the_table_is_a_table() -> None:
    assert len(ROWS) >= 80
    assert all(row.after or row.refused for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=[row.line for row in ROWS])
def test_a_launch_line_is_understood_and_edited_where_it_acts(row: Row) -> None:
    (command,) = parse_exec(row.line)
    launch = understand(command.words, AROUND, dollar=not command.literal_dollar)
    if row.argv is None:
        assert isinstance(launch, NotSeen)
        assert launch.refusal.reason == row.refused
        assert launch.refusal.instead
        return
    assert isinstance(launch, Launch)
    assert list(launch.argv) == row.argv
    if row.refused is not None:
        with pytest.raises(UnfitError) as raised:
            edited(launch)
        assert row.refused in raised.value.message
        assert raised.value.hint
        return
    argv, files = edited(launch)
    assert format_exec(ExecCommand(argv, command.prefix)) == row.after
    changed = [
        f"{path}: {new}"
        for path, copy in files.items()
        for old, new in zip(SCRIPTS[copy.original].splitlines(), copy.text.splitlines(), strict=True)
        if old != new
    ]
    assert changed == row.copies


@pytest.mark.parametrize("row", [row for row in ROWS if row.after], ids=lambda row: row.line)
def test_a_line_that_is_not_edited_stays_word_for_word(row: Row) -> None:
    (command,) = parse_exec(row.line)
    launch = understand(command.words, AROUND, dollar=not command.literal_dollar)
    assert isinstance(launch, Launch)
    assert launch.edited(launch.argv, where="here") == (command.words, {})


SHELL_LINES = (
    "{line}",
    "cd / && exec {line}",
    "A=1 B='x y' {line} 2>&1 | cat",
    "if true; then :; fi; ({line}) # it's the server",
    "exec env C=d nice -n 5 {line} </dev/null",
    "cat <<'END' >/dev/null\nvllm serve of a text\nEND\n{line}",
    "set -e\nX=$(echo ')')\n{line} \\\n  2>/dev/null",
    'f() {{ echo "never $1"; }}\ncase $X in *) : ;; esac\n{line} > >(cat)',
    'echo "$(echo \'a " b\')" >/dev/null; {line} &\nwait',
)
WORDS = st.lists(st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=8), max_size=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a program ``vllm`` that prints its arguments."""
    path = tmp_path_factory.mktemp("bin")
    (path / "vllm").write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
    (path / "vllm").chmod(0o755)
    return path


@pytest.mark.parametrize("text", SHELL_LINES)
@settings(max_examples=6)
@given(own=WORDS, new=WORDS)
def test_a_real_shell_runs_what_was_meant(folder: Path, text: str, own: list[str], new: list[str]) -> None:
    """The oracle is bash: the server that it starts gets its own words, then the new ones."""
    line = text.format(line=shlex.join(["vllm", "serve", *own]))
    launch = understand(("/bin/bash", "-c", line), AROUND, dollar=False)
    assert isinstance(launch, Launch)
    assert launch.argv == ("vllm", "serve", *own)
    argv, _ = launch.edited((*launch.argv, "--new", *new), where="here", leading=("env", "D=e f"))
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(argv, env=environment, capture_output=True, timeout=30, check=True)
    assert done.stdout.decode().split("\0")[:-1] == ["serve", *own, "--new", *new]


WRAPPERS = st.lists(
    st.sampled_from(
        (
            ("/usr/bin/nice", "-n", "5"),
            ("numactl", "-N", "0", "--membind=0"),
            ("env", "A=b", "C=d e"),
            ("timeout", "-k", "5", "1h"),
            ("stdbuf", "-oL"),
            ("taskset", "-c", "0-3"),
            ("conda", "run", "-n", "vllm"),
            ("sudo", "-E", "-u", "vllm"),
        )
    ),
    max_size=4,
)


@given(wrappers=WRAPPERS, own=WORDS, shells=st.integers(0, 2))
def test_any_pile_of_wrappers_is_taken_off_and_put_back(
    wrappers: list[tuple[str, ...]], own: list[str], shells: int
) -> None:
    engine = ("/opt/vllm/bin/vllm", "serve", "/m", *own)
    argv: tuple[str, ...] = (*(word for wrapper in wrappers for word in wrapper), *engine)
    for _ in range(shells):
        argv = ("bash", "-c", f"exec {shlex.join(argv)}")
    launch = understand(argv, Surroundings(), dollar=False)
    assert isinstance(launch, Launch)
    assert launch.argv == engine
    assert [one for one in launch.wrappers if not one.startswith("bash")] == [" ".join(one) for one in wrappers]
    edited, _ = launch.edited((*launch.argv, "--x", "a b"), where="here")
    again = understand(edited, Surroundings(), dollar=False)
    assert isinstance(again, Launch)
    assert again.argv == (*engine, "--x", "a b")


@given(text=st.text(st.sampled_from("vllm serve '\"$(){}`\\;&|<>#\n=ab0@"), max_size=40))
def test_no_text_for_a_shell_is_an_error_of_ours(text: str) -> None:
    found = understand(("bash", "-c", text), Surroundings(), dollar=False)
    assert isinstance(found, (Launch, NotSeen))


@pytest.mark.parametrize(
    ("line", "cmdline", "same"),
    [
        ("vllm serve /m $ARGS", "python3 /v/bin/vllm serve /m a b", True),
        ("vllm serve /m $ARGS", "python3 /v/bin/vllm serve /m", True),
        ("vllm serve /m $ARGS", "python3 /v/bin/vllm serve /other", False),
        ("vllm serve /models/${NAME}", "vllm serve /models/kimi", True),
        ("vllm serve /models/${NAME}", "vllm serve /other/kimi", False),
        ("vllm serve $$5", "vllm serve $5", True),
        ("vllm serve a.b", "vllm serve axb", False),
        ("numactl -N 0 vllm serve /m", "/v/bin/python /v/bin/vllm serve /m", True),
        ("bash -c 'exec vllm serve $$(ls /m) --port 1'", "python vllm serve /m/x --port 1", True),
        ("bash -c 'exec vllm serve $$(ls /m) --port 1'", "python vllm serve /m/x --port 2", False),
    ],
)
def test_a_process_is_compared_from_the_program_on(line: str, cmdline: str, same: bool) -> None:
    (command,) = parse_exec(line)
    launch = understand(command.words, Surroundings())
    assert isinstance(launch, Launch)
    assert matches(launch.argv, cmdline.split()) is same


def test_a_flag_inside_a_variable_is_not_edited_by_itself() -> None:
    launch = understand(("vllm", "serve", "/m", "$EXTRA_ARGS"), AROUND)
    assert isinstance(launch, Launch)
    left = [word for word in launch.argv if word not in {"--max-num-seqs", "64"}]
    with pytest.raises(UnfitError, match="comes out of a variable"):
        launch.edited(left, where="here")


def test_a_container_is_described_with_its_published_port() -> None:
    (command,) = parse_exec(
        "docker run --rm --name m -p 127.0.0.1:9000:8000/tcp --gpus all vllm/vllm-openai:v1 --model /m"
    )
    launch = understand(command.words, AROUND)
    assert isinstance(launch, Launch)
    assert launch.container is not None
    assert launch.container.host_port("8000") == "9000"
    assert launch.container.described == "container m, image vllm/vllm-openai:v1, ports 127.0.0.1:9000:8000/tcp"
    assert not launch.container.detached


@pytest.mark.parametrize(
    ("value", "after"),
    [
        ("-/usr/bin/docker rm -f m", "-/usr/bin/docker rm -f v"),
        ("/bin/sh -c 'docker stop -t 60 m; true'", "/bin/sh -c 'docker stop -t 60 v; true'"),
        ("/usr/bin/docker pull m/m:m", "/usr/bin/docker pull m/m:m"),
        ("/usr/bin/rm -rf m", "/usr/bin/rm -rf m"),
    ],
)
def test_lines_that_speak_to_the_container_get_its_other_name(value: str, after: str) -> None:
    assert rename_in(value, "m", "v") == after
