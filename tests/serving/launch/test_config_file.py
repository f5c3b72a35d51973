from __future__ import annotations

from opsctl.serving.launch.config_file import arguments_of, names_of, without

TEXT = """\
# served behind the router
model: /models/kimi
port: 8000  # the router's
served_model_name:
  - kimi
  - kimi-k2
"trust-remote-code": true
enforce-eager: false
compilation-config: '{"level": 3}'
"""


def test_a_file_is_read_as_arguments() -> None:
    assert arguments_of(TEXT) == (
        *("--model", "/models/kimi", "--port", "8000", "--served-model-name", "kimi", "kimi-k2"),
        *("--trust-remote-code", "--compilation-config", '{"level": 3}'),
    )


def test_flags_are_taken_out_and_the_rest_stays_as_it_is() -> None:
    assert names_of(TEXT) >= {"model", "served-model-name", "enforce-eager"}
    left = without(TEXT, ["served-model-name", "port"])
    assert left == TEXT.replace("port: 8000  # the router's\n", "").replace(
        "served_model_name:\n  - kimi\n  - kimi-k2\n", ""
    )
