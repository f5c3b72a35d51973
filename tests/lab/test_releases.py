"""Lab hosts of every Debian release that opsctl supports: its own systemd and Python, and a whole campaign on each.

The campaign's payload runs with the release's own Python: 3.9 on Debian 11.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.errors import UnfitError
from opsctl.lab import releases
from opsctl.lab.spec import HostSpec
from tests.faults.bench import CAMPAIGN, Bench, short
from tests.labfixtures import MakeLabHost


@pytest.mark.lab
@pytest.mark.timeout(600)  # the first time a root is built
@pytest.mark.parametrize("release", releases.RELEASES, ids=lambda release: release.name)
def test_a_whole_campaign_on_a_release(make_lab_host: MakeLabHost, tmp_path: Path, release: releases.Release) -> None:
    host = make_lab_host(HostSpec(release=release.name))
    assert host.systemctl("is-system-running") == "running"
    assert host.systemctl("--version").split()[1] == str(release.systemd)
    bench = Bench.build(host, tmp_path)
    assert host.exec("/opt/vllm/bin/python", "-V").stdout.split()[1].rpartition(".")[0] == release.python
    bench.playbook = short("variant")
    controller = bench.run()
    try:
        assert controller.wait(3 * CAMPAIGN) == 0, controller.tail()
    finally:
        controller.end()
    assert bench.at_rest()
    assert bench.breaches() == []


@pytest.mark.parametrize(
    ("word", "name"), [("11", "bullseye"), ("trixie", "trixie"), ("12-backports", "bookworm-backports")]
)
def test_a_release_is_found_by_number_and_name(word: str, name: str) -> None:
    assert releases.find(word).name == name


def test_an_unknown_release_names_those_there_are() -> None:
    with pytest.raises(UnfitError, match="no release 'sid'") as caught:
        releases.find("sid")
    assert "bullseye (11)" in str(caught.value.wanted)
