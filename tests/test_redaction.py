from __future__ import annotations

import pytest

from opsctl.redaction import BLANK, is_secret_name, redact, redact_argv, redact_value


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
