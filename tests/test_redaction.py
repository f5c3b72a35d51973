from __future__ import annotations

import io
import json
import sys
import tempfile
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.live import Live
from rich.table import Table
from rich.text import Text

from opsctl.commands.output import CleanStream, say_error
from opsctl.commands.terminal import Terminal
from opsctl.errors import UnfitError
from opsctl.redaction import BLANK, is_secret_name, printable, redact, redact_argv, redact_value
from opsctl.report import render_markdown
from opsctl.runs.events import Event, JsonLines, Recorder, Sink
from opsctl.runs.journal import Journal
from opsctl.runs.reading import load_run
from opsctl.terminal.live_view import PlainLines


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve m --api-key hunter2secret --port 8000",
        "vllm serve m --api-key=hunter2secret",
        "Authorization: Bearer hunter2secret",
        "VLLM_API_KEY=hunter2secret vllm serve",
        "HF_TOKEN='hunter2secret'",
        "slack://user:hunter2secret@host/room",
    ],
)
def test_secrets_in_text_are_blanked(text: str) -> None:
    assert "hunter2secret" not in redact(text)
    assert BLANK in redact(text)


@pytest.mark.parametrize("text", ["--api-key-file /etc/kimi.key", "max_tokens=32", "tokens: [1, 8]", "token 7 armed"])
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


def test_an_argv_keeps_its_shape() -> None:
    assert redact_argv(["vllm", "--api-key", "hunter2", "--port", "1"]) == ("vllm", "--api-key", BLANK, "--port", "1")
    assert redact_argv(["vllm", "--api-key", "--port", "1"]) == ("vllm", "--api-key", "--port", "1")


def test_plain_data_is_blanked_by_name_and_by_looks() -> None:
    data = {
        "api_key": "abc",
        "api-key-file": "/k",
        "list": ["--api-key", "abc"],
        "deep": {"x": "Bearer abcdef123"},
        "n": 3,
    }
    assert redact_value(data) == {
        "api_key": BLANK, "api-key-file": "/k", "list": ["--api-key", BLANK], "deep": {"x": f"Bearer {BLANK}"}, "n": 3,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HF_TOKEN", True),
        ("api-key", True),
        ("api-key-file", False),
        ("tokens", False),
        ("max_tokens", False),
        ("MY_SECRET", True),
        ("VLLM_API_KEY", True),
    ],
)
def test_names_that_hold_secrets(name: str, secret: bool) -> None:
    assert is_secret_name(name) is secret


SECRETS = st.text("abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789+/_.", min_size=10, max_size=40).filter(
    lambda text: text[0].isalpha() and not text.isalpha()
)
CARRIERS = (
    "vllm serve m --api-key {} --port 8000",
    "vllm serve m --api-key first {} --port 8000",
    "vllm serve m --api-key={}",
    "--ssl-keyfile-password {}",
    "AWS_SECRET_ACCESS_KEY={} vllm serve",
    "PGPASSWORD={}",
    "PGPASSWORD='{}'",
    "{{'api_key': '{}'}}",
    '{{"apiKey": "{}"}}',
    "password: {}",
    "https://user:{}@host/path",
    "curl -H 'Authorization: Bearer {}'",
    "GET /x?api_key={}&n=1",
    "['vllm', '--api-key', 'first', '{}']",
)


@given(st.sampled_from(CARRIERS), SECRETS)
def test_a_planted_secret_is_in_no_text(carrier: str, secret: str) -> None:
    text = carrier.replace("{{", "{").replace("}}", "}").replace("{}", secret)
    assert secret not in redact(f"before {text} after")
    assert redact(redact(text)) == redact(text)


@given(st.sampled_from(CARRIERS), SECRETS)
def test_json_stays_json_and_holds_no_planted_secret(carrier: str, secret: str) -> None:
    text = carrier.replace("{{", "{").replace("}}", "}").replace("{}", secret)
    document = {
        "message": text,
        "argv": ["x", "--api-key", "first", secret],
        "api-key": [secret],
        "deep": {"token": secret},
    }
    printed = redact(json.dumps(document, indent=2))
    json.loads(printed)
    assert secret not in printed
    assert secret not in json.dumps(redact_value(document))


@given(SECRETS, st.sampled_from(CARRIERS))
@settings(max_examples=25, deadline=None)
def test_a_planted_secret_is_in_no_sink_of_a_run(secret: str, carrier: str) -> None:
    text = carrier.replace("{{", "{").replace("}}", "}").replace("{}", secret)
    shown, lines = io.StringIO(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder, Journal(Path(folder)) as journal:
        journal.begin_run("r", playbook="p", file="p.yml", version="1", definition={"argv": [text]})
        journal.host("r", "h", production="p", unit="p.service")
        sinks: list[Sink] = [PlainLines(Terminal(file=shown, width=60)), JsonLines(lines)]
        Recorder("r", journal, sinks).say("service.failed", text, host="h", lines=[text], env={"API_KEY": secret})
        with journal.mutation("r", "h", "stop", "p.service") as detail:
            detail["said"] = text
        journal.end_run("r", outcome="failed", exit_code=1, reason=text)
        report = render_markdown(load_run(journal, "r"))
        kept = b"".join(file.read_bytes() for file in Path(folder).rglob("*") if file.is_file())
    with pytest.MonkeyPatch.context() as patch:
        out = io.StringIO()
        patch.setattr(sys, "stdout", CleanStream(out))
        patch.setattr(sys, "stderr", CleanStream(out))
        say_error(UnfitError(text, seen=text, hint=text), as_json=True)
        print(text)
    wrapped = shown.getvalue().replace("\n", "")
    assert all(secret not in where for where in (wrapped, lines.getvalue(), report, out.getvalue()))
    assert secret.encode() not in kept


ATTACKS = (
    ("\x1b]0;owned\x07", ""),
    ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
    ("\x1b]52;c;ZXZpbA==\x07", ""),
    ("\x1b[2J\x1b[H\x1b[31mred", "red"),
    ("\x9b2J\x9d0;x\x9c\x90q\x9c", ""),
    ("a\rb\x08c\x7f\x00", "abc"),
    ("\x1bc\x1b(0", ""),
    ("safe \u202egnp.exe", "safe gnp.exe"),
    ("\x1b[", ""),
    ("tab\tand\nline", "tab\tand\nline"),
)


@pytest.mark.parametrize(("attack", "left"), ATTACKS)
def test_nothing_that_a_terminal_obeys_is_left(attack: str, left: str) -> None:
    assert printable(attack) == left


@given(st.text())
def test_whatever_comes_is_harmless_and_plain_text_is_whole(text: str) -> None:
    cleaned = printable(text)
    assert all(letter in "\n\t" or unicodedata.category(letter) != "Cc" for letter in cleaned)
    plain = "".join(letter for letter in text if letter.isprintable())
    assert printable(plain) == plain


@pytest.mark.parametrize("attack", [attack for attack, left in ATTACKS if attack != left])
def test_a_hosts_words_move_no_cursor_in_tables_live_view_or_lines(attack: str) -> None:
    out = io.StringIO()
    console = Terminal(file=out, force_terminal=True, width=80)
    table = Table()
    table.add_row(attack)
    PlainLines(console).show(Event("2026-12-01T00:00:00", "r", "service.failed", "h", message=attack))
    with Live(table, console=console, auto_refresh=False) as live:
        live.console.print(Text(attack), attack)
    stream = CleanStream(out)
    print(attack, file=stream)
    # Rich's own colours and cursor moves may be there; what the attack brought may not.
    for sequence in (
        "\x1b]",
        "\x9b",
        "\x9d",
        "\x90",
        "\x1bc",
        "\x1b(0",
        "[2J\x1b[H\x1b[31m",
        "\x08",
        "\x7f",
        "\x00",
        "\u202e",
    ):
        assert sequence not in out.getvalue()
