from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from opsctl.trace.inflate import BLOCK, Source

TEXT = b"".join(b"line %d of a text that compresses\n" % index for index in range(90_000))


def _read(path: Path) -> tuple[bytes, Source]:
    source = Source(path)
    return b"".join(source.blocks()), source


@pytest.mark.parametrize("without", ["", "isal"])
@pytest.mark.parametrize("members", [1, 3])
def test_gzip_is_read_whole_also_in_several_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: str, members: int
) -> None:
    monkeypatch.setenv("OPSCTL_TRACE_WITHOUT", without)
    third = len(TEXT) // members + 1
    parts = [gzip.compress(TEXT[at : at + third]) for at in range(0, len(TEXT), third)]
    (tmp_path / "t.gz").write_bytes(b"".join(parts))
    text, source = _read(tmp_path / "t.gz")
    assert text == TEXT
    assert source.cut is None
    assert source.text_bytes == len(TEXT)


def test_blocks_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "t.gz").write_bytes(gzip.compress(b"0" * (5 * BLOCK)))
    assert max(map(len, Source(tmp_path / "t.gz").blocks())) <= BLOCK


@pytest.mark.parametrize("share", [0.001, 0.3, 0.9, 0.99999])
def test_what_is_salvaged_of_a_cut_file_is_the_same_with_and_without_isal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    data = gzip.compress(TEXT)
    (tmp_path / "t.gz").write_bytes(data[: int(len(data) * share)])
    found = []
    for without in ("", "isal"):
        monkeypatch.setenv("OPSCTL_TRACE_WITHOUT", without)
        text, source = _read(tmp_path / "t.gz")
        assert TEXT.startswith(text)
        found.append((text, source.cut))
    assert found[0] == found[1]
    assert found[0][1] == "the gzip data ends without its trailer"


def test_a_flipped_byte_is_damage_and_most_is_salvaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytearray(gzip.compress(TEXT, 1))
    data[-5] ^= 0xFF  # in the trailer: all of the text is there
    (tmp_path / "t.gz").write_bytes(data)
    found = []
    for without in ("", "isal"):
        monkeypatch.setenv("OPSCTL_TRACE_WITHOUT", without)
        text, source = _read(tmp_path / "t.gz")
        assert source.cut is not None
        assert "damaged" in source.cut
        found.append(text)
    assert found[0] == found[1]
    assert len(found[0]) > len(TEXT) * 0.9


def test_a_file_that_grows_while_it_is_read_is_named_so(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(b"x" * 3 * BLOCK)
    source = Source(path)
    for number, _ in enumerate(source.blocks()):
        if number == 0:
            with path.open("ab") as file:
                file.write(b"more")
    assert source.grew
