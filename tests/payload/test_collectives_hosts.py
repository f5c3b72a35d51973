"""One group over two hosts with kernels' network stacks of their own, joined by a cable: gloo between lab hosts."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from opsctl.lab.hosts import LabHost
from opsctl.payload import build_zipapp
from opsctl.payload.output import read_records
from tests.labfixtures import MakeLabHost
from tests.payload.pacing import cells, figures

pytestmark = pytest.mark.lab
PORT = 29711


def spec(address: str, node: int, **changes: Any) -> dict[str, Any]:
    work: list[dict[str, Any]] = [
        {"id": op, "op": op, "bytes": 14336, "graph": "off", "environment": {}} for op in ("all_reduce", "all_to_all")
    ]
    return {
        "world_size": 2,
        "backend": "gloo",
        "repetitions": 8,
        "smoke_limit": 150.0,
        "limit": 190.0,
        "rendezvous": {"address": address, "port": PORT, "node": node, "nodes": 2},
        "cells": work,
        **changes,
    }


@contextmanager
def running(host: LabHost, work: dict[str, Any], payload: Path) -> Iterator[subprocess.Popen[bytes]]:
    host.exec("mkdir", "-p", "/root/step")
    host.write_file("/root/step/spec.json", json.dumps(work))
    inside = (
        f"cd /root/step && exec {sys.executable} -B /root/{payload.name} collectives --spec spec.json --out r.jsonl"
    )
    with subprocess.Popen(host.exec_argv("sh", "-c", inside)) as process:
        try:
            yield process
        finally:
            process.terminate()


def ready(host: LabHost, payload: Path) -> None:
    host._pipe(payload.read_bytes(), "sh", "-c", f"cat > /root/{payload.name}")


def records(host: LabHost, folder: Path) -> list[dict[str, Any]]:
    path = folder / f"{host.name}.jsonl"
    path.write_text(host.read_file("/root/step/r.jsonl"))
    return read_records(path)


@pytest.mark.timeout(240)
def test_two_hosts_meet_and_agree(make_lab_host: MakeLabHost, tmp_path: Path) -> None:
    payload = build_zipapp(tmp_path)
    first, second = make_lab_host(), make_lab_host()
    ready(first, payload)
    ready(second, payload)
    with ExitStack() as stack:
        processes = [
            stack.enter_context(running(host, spec(first.address, node), payload))
            for node, host in enumerate((first, second))
        ]
        ended = [process.wait(200) for process in processes]
    told = [records(host, tmp_path) for host in (first, second)]
    assert ended == [0, 0], [each[-1] for each in told]
    seen = [cells(each) for each in told]
    for each in seen:
        assert {name: cell["state"] for name, cell in each.items()} == dict.fromkeys(
            ("all_reduce", "all_to_all"), "verified"
        )
    # The times are gathered from all ranks: both hosts tell the same.
    assert figures(seen[0]["all_reduce"]) == figures(seen[1]["all_reduce"])


def test_a_host_that_never_comes(make_lab_host: MakeLabHost, tmp_path: Path) -> None:
    payload = build_zipapp(tmp_path)
    host = make_lab_host()
    ready(host, payload)
    with running(host, spec(host.address, 0, limit=3.0), payload) as process:
        assert process.wait(60) == 1
    last = records(host, tmp_path)[-1]
    assert last["state"] == "failed"
    assert last["reason"] == f"the 2 hosts of this run did not meet at {host.address}:{PORT} within 3 s"
