from __future__ import annotations

import pytest

from opsctl.host.protocol import UnitStatus
from opsctl.serving.discovery import server_of


def unit(*argv: str, active: str = "active") -> UnitStatus:
    return UnitStatus(
        name="vllm-x.service", load_state="loaded", active_state=active, sub_state="running", exec_start=(argv,)
    )


@pytest.mark.parametrize(
    ("argv", "url", "model", "ranks", "python"),
    [
        (
            "/opt/vllm/bin/vllm serve /models/kimi --served-model-name kimi-k2.5 kimi -tp 8 --host 0.0.0.0 --port 8100",
            "http://127.0.0.1:8100",
            "kimi-k2.5",
            8,
            "/opt/vllm/bin/python",
        ),
        ("/usr/bin/env vllm serve org/model --tensor-parallel-size=4", "http://127.0.0.1:8000", "org/model", 4, None),
        (
            "/venv/bin/python3.12 -m vllm.entrypoints.openai.api_server --model /m --host 10.0.0.5",
            "http://10.0.0.5:8000",
            "/m",
            1,
            "/venv/bin/python3.12",
        ),
        (
            "/usr/bin/numactl -N0 /opt/v/bin/vllm serve --model /m",
            "http://127.0.0.1:8000",
            "/m",
            1,
            "/opt/v/bin/python",
        ),
        ("/v/bin/vllm serve", "http://127.0.0.1:8000", "", 1, "/v/bin/python"),
    ],
)
def test_a_vllm_server_is_known_by_its_command_line(
    argv: str, url: str, model: str, ranks: int, python: str | None
) -> None:
    found = server_of(unit(*argv.split()))
    assert found is not None
    assert (found.engine, found.url, found.model, found.tensor_parallel, found.python) == (
        "vllm",
        url,
        model,
        ranks,
        python,
    )
    assert found.active


def test_an_sglang_server_is_known_too() -> None:
    found = server_of(unit("/v/bin/python", "-m", "sglang.launch_server", "--model-path", "/m", "--tp", "2"))
    assert found is not None
    assert (found.engine, found.url, found.model, found.tensor_parallel) == (
        "sglang",
        "http://127.0.0.1:30000",
        "/m",
        2,
    )


@pytest.mark.parametrize("argv", ["/usr/sbin/sshd -D", "/usr/bin/vllm-exporter", "/opt/v/bin/vllm bench serve2", ""])
def test_other_units_are_no_servers(argv: str) -> None:
    assert server_of(unit(*argv.split())) is None


def test_what_was_found_holds_no_key_of_the_command_line() -> None:
    found = server_of(unit("/v/bin/vllm", "serve", "/m", "--api-key", "sk-secret"))
    assert "sk-secret" not in repr(found)
