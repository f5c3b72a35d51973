"""`opsctl lease` and `opsctl guard`, as a person types them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.guard.site import Site

pytestmark = pytest.mark.lab


@pytest.fixture
def opsctl(site: Site, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs opsctl with an inventory of the site's host, named gpu1."""
    entry = {
        "address": site.lab.address,
        "user": "root",
        "identity-file": str(site.lab.identity_file),
        "known-hosts": str(site.lab.known_hosts),
    }
    path = tmp_path / "inventory.yml"
    path.write_text(yaml.safe_dump({"hosts": {"gpu1": entry}, "groups": {"fleet": ["gpu1"]}}))

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "opsctl", *words, "-i", str(path)]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=90)

    return run


Run = Callable[..., subprocess.CompletedProcess[str]]


def test_a_lease_is_shown_and_broken(site: Site, opsctl: Run) -> None:
    assert "no lease was ever held here" in opsctl("lease", "show", "gpu1").stdout
    lease = site.arm()
    shown = opsctl("lease", "show", "fleet")
    assert shown.returncode == 0
    assert "gpu1: held by alice@laptop (run r1) since 20" in shown.stdout
    document = json.loads(opsctl("lease", "show", "gpu1", "--json").stdout)["gpu1"]
    assert (document["state"], document["token"], document["live"], document["watched"]) == ("held", 1, True, True)
    site.variant(lease.token)
    broken = opsctl("lease", "break", "gpu1")
    assert broken.returncode == 0
    assert "the guard is bringing back production.service" in broken.stdout
    site.await_closed()
    site.assert_restored()
    assert "closed by guard at 20" in opsctl("lease", "show", "gpu1").stdout


def test_a_guard_that_does_not_look_is_called_out(site: Site, opsctl: Run) -> None:
    site.arm()
    site.lab.exec("sh", "-c", "mv /etc/systemd/system/opsctl-guard.service /root/; systemctl stop opsctl-guard; true")
    site.lab.exec("rm", "/run/opsctl/tick")
    assert "THE GUARD DOES NOT LOOK" in opsctl("lease", "show", "gpu1").stdout


def test_the_guard_is_installed_shown_and_removed(site: Site, opsctl: Run) -> None:
    assert "this opsctl's" in opsctl("guard", "show", "gpu1").stdout
    assert opsctl("guard", "uninstall", "gpu1").returncode == 0
    shown = opsctl("guard", "show", "gpu1")
    assert shown.returncode == 0
    assert "no guard is installed" in shown.stdout
    assert json.loads(opsctl("guard", "show", "gpu1", "--json").stdout) == {"gpu1": None}
    installed = opsctl("guard", "install", "gpu1")
    assert installed.returncode == 0
    assert "this opsctl's" in installed.stdout
    site.arm()
    refused = opsctl("guard", "uninstall", "gpu1")
    assert refused.returncode == 4
    assert "held by alice@laptop" in refused.stderr


def test_an_unknown_host_is_exit_2(opsctl: Run) -> None:
    wrong = opsctl("lease", "show", "gpu2")
    assert wrong.returncode == 2
    assert "gpu1" in wrong.stderr
