import os
from pathlib import Path

import pytest

from opsctl.payload.tracefiles import Seen, bring, changed, rank_files, snapshot, total

NAMES = (
    "rank0.1796087968653507691.pt.trace.json.gz",
    "dp0_pp0_tp1_dcp0_ep1_rank1.17960879.pt.trace.json.gz",
    "host-rank-2.1.pt.trace.json",
    "1700000000.0-TP-3.trace.json.gz",
    "vm_6129.async_llm.1796087967474904076.pt.trace.json.gz",
    "profiler_out_0.txt",
    "rank0.profiler_out.txt",
    "rank0.tmp",
)


def test_which_files_are_ranks() -> None:
    seen = [Seen(Path(name), 1, 1) for name in NAMES]
    assert [each.path.name for each in rank_files(seen)] == list(NAMES[:4])
    assert total(seen) == 8


def test_changed_sees_new_and_rewritten_files(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"1")
    (tmp_path / "again").write_bytes(b"1")
    before = snapshot(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "new").write_bytes(b"12")
    os.utime(tmp_path / "again", ns=(1, 1))
    assert [str(each.path.relative_to(tmp_path)) for each in changed(before, snapshot(tmp_path))] == [
        "again",
        "sub/new",
    ]


def test_a_folder_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert snapshot(tmp_path / "none") == {}


def test_bring_renames(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    bring(tmp_path / "a", tmp_path / "t" / "w" / "a")
    assert (tmp_path / "t" / "w" / "a").read_bytes() == b"x"
    assert not (tmp_path / "a").exists()


def test_bring_copies_over_a_border(tmp_path: Path) -> None:
    shm = Path("/dev/shm") / f"opsctl-test-{os.getpid()}"
    if not shm.parent.is_dir() or shm.parent.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second file system here")
    shm.write_bytes(b"x" * 1000)
    bring(shm, tmp_path / "w" / "a")
    assert (tmp_path / "w" / "a").stat().st_size == 1000
    assert not shm.exists()
    assert [path.name for path in (tmp_path / "w").iterdir()] == ["a"]
