"""``opsctl doctor`` and ``opsctl units`` as whole processes, on a real host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from opsctl.lab.hosts import LabHost
from opsctl.lab.units import Standin

pytestmark = pytest.mark.lab

VARIANT = "vllm-kimi-k25-int4-profiler"


@pytest.fixture
def inventory(fresh_lab_host: LabHost, standin_unit: Callable[..., None], tmp_path: Path) -> Path:
    standin_unit(fresh_lab_host, Standin())
    written = {
        "hosts": {
            "gpu1": {
                "address": fresh_lab_host.address,
                "user": "root",
                "identity-file": str(fresh_lab_host.identity_file),
                "known-hosts": str(fresh_lab_host.known_hosts),
            }
        },
        "services": {
            Standin().unit: {"url": Standin().url, "model": Standin().served, "tensor-parallel": 2},
            VARIANT: {"role": "variant", "of": Standin().unit, "profiler": "torch", "env": {"X_TOKEN": "hidden"}},
        },
    }
    path = tmp_path / "inventory.yml"
    path.write_text(yaml.safe_dump(written))
    return path


@pytest.fixture
def opsctl(inventory: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "opsctl", *arguments, "-i", str(inventory)],
            env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    return run


Run = Callable[..., subprocess.CompletedProcess[str]]


def document(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_doctor_as_lines_and_as_a_document(opsctl: Run, fresh_lab_host: LabHost) -> None:
    shown = opsctl("doctor", "gpu1")
    assert shown.returncode == 0, shown.stderr
    assert "gpu1 is fit" in shown.stdout
    assert "✓ ok" in shown.stdout
    (host,) = document(opsctl("doctor", "gpu1", "--json"))["hosts"]
    assert host["host"] == "gpu1"
    assert {"name", "verdict", "reason", "hint"} == set(host["checks"][0])
    fresh_lab_host.exec("sh", "-c", f"echo '#' >>/etc/systemd/system/{Standin().service_name}")
    unfit = opsctl("doctor", "gpu1")
    assert unfit.returncode == 2
    assert "not fit" in unfit.stdout
    assert "daemon-reload" in unfit.stdout


def test_units_are_compared_installed_and_removed(opsctl: Run, fresh_lab_host: LabHost) -> None:
    shown = opsctl("units", "diff", "gpu1")
    assert f"{VARIANT}.service, derived from {Standin().service_name}" in shown.stdout
    assert "+ --profiler-config" in shown.stdout
    assert "+ env X_TOKEN=[redacted]" in shown.stdout
    assert "hidden" not in shown.stdout
    (row,) = document(opsctl("units", "diff", "gpu1", VARIANT, "--json"))["variants"]
    assert row["service"] == VARIANT
    path = f"/run/systemd/system/{VARIANT}.service"
    assert not fresh_lab_host.exists(path), "a comparison writes nothing"

    (row,) = document(opsctl("units", "install", "gpu1", "--json"))["variants"]
    assert row["installed"]
    assert fresh_lab_host.exists(path)
    fresh_lab_host.systemctl("start", f"{VARIANT}.service", check=False)
    assert fresh_lab_host.systemctl("is-active", f"{VARIANT}.service", check=False) == "inactive"
    assert fresh_lab_host.systemctl("is-active", Standin().service_name) == "active"

    (row,) = document(opsctl("units", "remove", "gpu1", "--json"))["variants"]
    assert row["removed"]
    assert not fresh_lab_host.exists(path)
    assert "was not there" in opsctl("units", "remove", "gpu1").stdout


def test_an_unknown_variant_is_an_error_with_the_known_ones(opsctl: Run) -> None:
    done = opsctl("units", "diff", "gpu1", "nonsense")
    assert done.returncode == 2
    assert "no variant nonsense" in done.stderr
    assert VARIANT in done.stderr
    assert "Traceback" not in done.stderr
