from __future__ import annotations

from collections.abc import Callable

import pytest

from opsctl.engines import ENGINES
from opsctl.host.protocol import Host
from opsctl.lab.hosts import LabHost
from opsctl.lab.units import environment_files
from opsctl.serving.profiler import ask_binary
from tests.serving.conftest import limit


@pytest.mark.lab
def test_the_binary_is_asked(fresh_lab_host: LabHost, reach: Callable[..., Host]) -> None:
    fresh_lab_host.write_files(environment_files())
    host = reach(fresh_lab_host)
    fresh_lab_host.write_file("/opt/new", '#!/bin/sh\n[ "$1" = serve ] && echo "  --profiler-config JSON"\n', 0o755)
    fresh_lab_host.write_file("/opt/old", "#!/bin/sh\necho '  --port PORT'\n", 0o755)
    fresh_lab_host.write_file("/opt/broken", "#!/bin/sh\nexit 1\n", 0o755)

    def ask(*argv: str) -> str:
        return ask_binary(host, ENGINES["vllm"], argv, deadline=limit())

    assert ask("/opt/new", "serve", "/m", "--port", "1") == "argument"
    assert ask("/usr/bin/env", "A=1", "/opt/new", "serve", "/m") == "argument"
    assert ask("/opt/old", "serve", "/m") == "environment"
    assert ask("/opt/broken", "serve", "/m") == "unsure"
    assert ask("python", "-m", "vllm.entrypoints.openai.api_server") == "unsure"
