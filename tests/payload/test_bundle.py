"""The zipapp: the same bytes each time, and alive on any Python from 3.9 with nothing installed."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from opsctl.payload import build_zipapp
from tests.payload.pacing import cells, paced_server
from tests.payload.test_serving_benchmark import spec

BARE = {"PATH": "/usr/bin:/bin"}


def pythons() -> list[str]:
    """Other Pythons that are here; pyenv keeps some, distributions one."""
    versions = Path.home() / ".pyenv" / "versions"
    kept = (
        [path / "bin" / "python3" for path in sorted([*versions.glob("3.9*"), *versions.glob("3.1[0-9]*")])]
        if versions.is_dir()
        else []
    )
    found = [shutil.which(f"python3.{minor}", path=os.environ["PATH"]) for minor in range(9, 16)]
    return [*(str(path) for path in kept), *(path for path in found if path and ".pyenv/shims" not in path)] or [
        sys.executable
    ]


def test_same_bytes_same_name(tmp_path: Path) -> None:
    first, second = build_zipapp(tmp_path / "a"), build_zipapp(tmp_path / "b")
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_size < 2_000_000


def test_built_again_it_is_left_alone(tmp_path: Path) -> None:
    path = build_zipapp(tmp_path)
    before = path.stat().st_mtime_ns
    assert build_zipapp(tmp_path) == path
    assert path.stat().st_mtime_ns == before
    path.write_bytes(b"cut short")
    assert zipfile.is_zipfile(build_zipapp(tmp_path))


def test_what_is_in_it(tmp_path: Path) -> None:
    names = zipfile.ZipFile(build_zipapp(tmp_path)).namelist()
    assert {
        "__main__.py",
        "opsctl/payload/main.py",
        "opsctl/trace/__init__.py",
        "httpx/__init__.py",
        "h11/__init__.py",
    } <= set(names)
    assert not [
        name for name in names if "pydantic" in name or "/stages/" in name or "/host/" in name or name.endswith(".pyc")
    ]
    assert [name for name in names if "licen" in name.lower()]


def test_it_hides_no_distribution_from_the_environment(tmp_path: Path) -> None:
    """A .dist-info without METADATA has no name: importlib.metadata fails on it, and so does `import torch`."""
    assert not [name for name in zipfile.ZipFile(build_zipapp(tmp_path)).namelist() if ".dist-info/" in name]


@pytest.mark.parametrize("python", pythons())
def test_it_measures_a_server_with_nothing_installed(tmp_path: Path, python: str) -> None:
    path = build_zipapp(tmp_path)
    step = tmp_path / "step"
    step.mkdir()
    with paced_server() as url:
        (step / "spec.json").write_text(json.dumps(spec(url, rounds=1)))
        # -I -S: no site-packages, no environment, no current folder.
        argv = [python, "-I", "-S", "-B", str(path), "serving-benchmark", "--spec", "spec.json", "--out", "r.jsonl"]
        done = subprocess.run(argv, cwd=step, env=BARE, capture_output=True, text=True, check=False, timeout=100)
    assert done.stderr == ""
    records = [json.loads(line) for line in (step / "r.jsonl").read_text().splitlines()]
    assert cells(records)["concurrency=2"]["state"] == "verified", records[-1]


def test_without_torch_gemm_says_so(tmp_path: Path) -> None:
    path = build_zipapp(tmp_path)
    work = {
        "device": "auto",
        "repetitions": 3,
        "limit": 60,
        "ops": [],
        "cells": [{"id": "a", "op": "a", "m": 1, "backend": "torch"}],
    }
    (tmp_path / "spec.json").write_text(json.dumps(work))
    bare = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
    argv = [bare, "-I", "-S", "-B", str(path), "gemm", "--spec", "spec.json", "--out", "r.jsonl"]
    subprocess.run(argv, cwd=tmp_path, env=BARE, check=False, timeout=100)
    records = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert records[-1]["state"] == "failed"
    reason = next(record["reason"] for record in records if record["record"] == "cell")
    assert "torch is not in the serving environment's Python" in reason


IMPORT_ALL = """
import importlib, sys, zipfile
sys.path.insert(0, sys.argv[1])
for name in zipfile.ZipFile(sys.argv[1]).namelist():
    if name.startswith("opsctl/") and name.endswith(".py") and "__main__" not in name and "bundle" not in name:
        importlib.import_module(name[:-3].replace("/", ".").removesuffix(".__init__"))
"""


@pytest.mark.parametrize("python", pythons())
def test_every_module_imports_with_nothing_installed(tmp_path: Path, python: str) -> None:
    (tmp_path / "all.py").write_text(IMPORT_ALL)
    argv = [python, "-I", "-S", "-B", "all.py", str(build_zipapp(tmp_path))]
    done = subprocess.run(argv, cwd=tmp_path, env=BARE, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
