"""What a unit's processes have read, on a real host."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from opsctl.host.protocol import Host
from opsctl.lab.hosts import LabHost
from opsctl.serving.load.vitals import Vitals, parse_vitals, read_vitals
from tests.serving.conftest import limit


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("rchar: 10\nread_bytes: 4\nrchar: 1\nread_bytes: 7\n", 17),
        ("rchar: 10\n", None),
        ("", None),
        ("rchar: 10\nread_bytes: 4\nrchar: 3\n", None),
    ],
)
def test_the_larger_count_of_each_process_is_taken(text: str, count: int | None) -> None:
    assert parse_vitals(text).read == count


@pytest.mark.lab
def test_the_whole_group_is_counted(lab_host: LabHost, reach: Callable[..., Host]) -> None:
    host = reach(lab_host)
    script = "head -c 100M /dev/zero >/dev/null & wait; exec 3</dev/zero; head -c 30M <&3 >/dev/null; exec sleep 600"
    reader = "import time; open('/dev/zero', 'rb').read(200 << 20); time.sleep(600)"
    lab_host.exec("systemd-run", "--unit=reader", "sh", "-c", f'/usr/bin/python3 -c "{reader}" & {script}')
    until = time.monotonic() + 30
    count: int | None = 0
    while (count or 0) < 200 << 20 and time.monotonic() < until:
        group = host.systemd().status("reader.service", deadline=limit()).control_group
        count = read_vitals(host, group, gpu=False, deadline=limit()).read
    lab_host.systemctl("kill", "--signal=KILL", "reader.service")
    assert count is not None
    assert 200 << 20 <= count < 400 << 20


@pytest.mark.lab
def test_what_cannot_be_seen_is_unknown(lab_host: LabHost, reach: Callable[..., Host]) -> None:
    none = read_vitals(reach(lab_host), "/system.slice/none.service", gpu=True, deadline=limit())
    assert (none.read, none.cpu, none.pids) == (None, None, frozenset())
    assert read_vitals(reach(lab_host), "", gpu=False, deadline=limit()) == Vitals()


@pytest.mark.parametrize(
    ("after", "moved"),
    [
        ("rchar: 200000000\nread_bytes: 0\n", True),
        ("rchar: 1000\nread_bytes: 0\ncpu: 11000000\n", False),
        ("rchar: 1000\nread_bytes: 0\ncpu: 14000000\n", True),
        ("cpu: 10000000\ngpu: 900 MiB\n", True),
        ("cpu: 10000000\ngpu: 800 MiB\n", False),
        ("", False),
    ],
)
def test_a_sign_of_life_is_reading_computing_or_gpu_memory(after: str, moved: bool) -> None:
    before = parse_vitals("pid: 7\nrchar: 1000\nread_bytes: 0\ncpu: 10000000\ngpu: 800 MiB\n")
    assert before.pids == {7}
    assert parse_vitals(after).moved_since(before, 10.0) is moved
