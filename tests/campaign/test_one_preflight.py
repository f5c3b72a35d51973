"""What one of plan, doctor and run refuses, all refuse, with the same words; what they pass, they all pass."""

from __future__ import annotations

import pytest

from opsctl.lab.hosts import LabHost
from opsctl.lab.units import Standin
from tests.campaign.conftest import Desk, answers, invocation

pytestmark = pytest.mark.lab
PRODUCTION = "vllm-kimi-k25-int4"
HANGS = "#!/bin/sh\nexec sleep 300\n"
BROKEN = "#!/bin/sh\necho 'error while loading shared libraries: libpython3.12.so' >&2; exit 127\n"
OLD = "#!/bin/sh\necho opsctl-python 3 8\n"
WRAPPER = """#!/bin/sh
[ "$2" != -c ] || echo '(base) environment activated'
exec /usr/bin/python3 "$@"
"""


@pytest.mark.parametrize(
    ("python", "said"),
    [
        (None, "does not start (status 127)"),
        (BROKEN, "libpython3.12.so"),
        (OLD, "the stages need 3.9 or newer"),
        (HANGS, "no answer within"),
        (WRAPPER, ""),
    ],
    ids=["missing", "broken", "old", "hangs", "noisy"],
)
def test_a_python_that_does_not_start(serving_host: LabHost, desk: Desk, python: str | None, said: str) -> None:
    path = "/opt/serving/bin/python"
    serving_host.exec("rm", "-f", path)
    if python is not None:
        serving_host.write_file(path, python, 0o755)
    desk.inventory["hosts"][desk.hosts[0].name]["python"] = path
    before = invocation(serving_host, PRODUCTION)
    for command in (["plan", "small.yml"], ["doctor", desk.hosts[0].name], ["run", "small.yml"]):
        done = desk.opsctl(*command)
        text = " ".join((done.out + done.err).split())
        assert done.code == (2 if said else 0), f"{command}: {text}"
        assert said in text, command
    if said:
        assert invocation(serving_host, PRODUCTION) == before
    assert answers(serving_host, Standin())
