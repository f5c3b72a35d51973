from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from opsctl.errors import HostKeyRejected
from opsctl.host.known_hosts import HostKeys, fingerprint, read_known_hosts


class Keys:
    """Two real key pairs made by ssh-keygen."""

    def __init__(self, folder: Path) -> None:
        self.lines: dict[str, str] = {}
        self.blobs: dict[str, bytes] = {}
        for name in ("right", "wrong"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
            kind, text = (folder / f"{name}.pub").read_text().split()[:2]
            self.lines[name] = f"{kind} {text}"
            probe = folder / f"{name}.known"
            probe.write_text(f"x {kind} {text}\n")
            self.blobs[name] = next(read_known_hosts([probe])).blob


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


def host_keys(folder: Path, text: str, *, host: str = "gpu1", port: int = 22, alias: str | None = None) -> HostKeys:
    file = folder / "known_hosts"
    file.write_text(text)
    return HostKeys([file, folder / "absent"], host=host, port=port, alias=alias)


Row = tuple[str, str, int, str | None]
ACCEPTED: list[Row] = [
    ("gpu1 {right}", "gpu1", 22, None),
    ("other,gpu1 {right} a comment", "gpu1", 22, None),
    ("# note\n\ngpu1 {right}", "GPU1", 22, None),
    ("*.lab {right}", "gpu1.lab", 22, None),
    ("gpu? {right}", "gpu1", 22, None),
    ("[gpu1]:2222 {right}", "gpu1", 2222, None),
    ("gpu1 {right}", "gpu1", 2222, None),  # as ssh: the name without the port, where the one with it is not known
    ("[*]:2222 {right}", "gpu1", 2222, None),
    ("the-alias {right}", "10.0.0.9", 2222, "the-alias"),
    ("gpu1 {wrong}\ngpu1 {right}", "gpu1", 22, None),
    ("@cert-authority * {wrong}\ngpu1 {right}", "gpu1", 22, None),
]


@pytest.mark.parametrize("row", ACCEPTED)
def test_a_known_key_is_accepted(keys: Keys, tmp_path: Path, row: Row) -> None:
    text, host, port, alias = row
    known = host_keys(tmp_path, text.format(**keys.lines), host=host, port=port, alias=alias)
    known.check("ssh-ed25519", keys.blobs["right"])
    assert known.kinds == ("ssh-ed25519",)


REJECTED = [
    ("", "is unknown"),
    ("gpu2 {right}", "is unknown"),
    ("!gpu1,gpu* {right}", "is unknown"),
    ("gpu1 {wrong}", "not the one that is known"),
    ("[gpu1]:2222 {right}", "is unknown"),
    ("gpu1 {right}\n@revoked * {right}", "is revoked"),
    ("@cert-authority gpu1 {wrong}", "host certificates are not supported"),
    ("gpu1 ssh-ed25519 !!!not-base64", "is unknown"),
    ("|1|broken {right}", "is unknown"),
]


@pytest.mark.parametrize(("text", "message"), REJECTED)
def test_any_other_key_is_refused(keys: Keys, tmp_path: Path, text: str, message: str) -> None:
    known = host_keys(tmp_path, text.format(**keys.lines))
    with pytest.raises(HostKeyRejected, match=message) as caught:
        known.check("ssh-ed25519", keys.blobs["right"])
    assert fingerprint(keys.blobs["right"]) in (caught.value.seen or "")
    assert caught.value.hint


def test_hashed_names_as_ssh_keygen_writes_them(keys: Keys, tmp_path: Path) -> None:
    file = tmp_path / "hashed"
    file.write_text(f"gpu1 {keys.lines['right']}\n[gpu1]:2222 {keys.lines['wrong']}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", file], check=True, capture_output=True)
    assert "gpu1" not in file.read_text()
    HostKeys([file], host="gpu1", port=22).check("ssh-ed25519", keys.blobs["right"])
    HostKeys([file], host="gpu1", port=2222).check("ssh-ed25519", keys.blobs["wrong"])
    with pytest.raises(HostKeyRejected):
        HostKeys([file], host="gpu1", port=2222).check("ssh-ed25519", keys.blobs["right"])


@pytest.mark.parametrize("row", [row for row in ACCEPTED if row[2] == 22])
def test_ssh_keygen_finds_the_same_lines(keys: Keys, tmp_path: Path, row: Row) -> None:
    text, host = row[:2]
    file = tmp_path / "known_hosts"
    file.write_text(text.format(**keys.lines) + "\n")
    found = subprocess.run(["ssh-keygen", "-F", host, "-f", file], capture_output=True, text=True, check=False)
    theirs = {line.split()[2] for line in found.stdout.splitlines() if line and line[0] not in "#@"}
    ours = {key.blob for key in read_known_hosts([file]) if not key.marker and key.is_for(host.lower())}
    assert len(theirs) == len(ours) > 0


def test_the_fingerprint_is_ssh_keygens(keys: Keys, tmp_path: Path) -> None:
    file = tmp_path / "key.pub"
    file.write_text(keys.lines["right"] + "\n")
    listed = subprocess.run(["ssh-keygen", "-l", "-f", file], capture_output=True, text=True, check=True).stdout
    assert listed.split()[1] == fingerprint(keys.blobs["right"])
