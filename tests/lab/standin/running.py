"""Start stand-ins on this machine, past any lab host, and talk to them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx

MODEL = "kimi-k2.5"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Running:
    """A stand-in process, its log, and where it keeps what a host would keep."""

    process: subprocess.Popen[bytes]
    port: int
    folder: Path
    began: float = field(default_factory=time.monotonic)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    @property
    def traces(self) -> Path:
        return self.folder / "traces"

    def client(self, timeout: float = 20.0) -> httpx.Client:
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=timeout, trust_env=False)

    def await_health(self, limit: float = 30.0) -> float:
        """Wait until /health answers 200 and return the seconds since the start."""
        with self.client(1.0) as client:
            while True:
                assert time.monotonic() - self.began < limit, self.log
                assert self.process.poll() is None, self.log
                with contextlib.suppress(httpx.TransportError):
                    if client.get("/health").status_code == 200:
                        return time.monotonic() - self.began
                time.sleep(0.02)

    def await_log(self, text: str, limit: float = 20.0) -> None:
        while text not in self.log:
            assert time.monotonic() - self.began < limit, self.log
            time.sleep(0.02)

    def completion(self, **fields: object) -> httpx.Response:
        body = {"model": MODEL, "prompt": "hello", "max_tokens": 4, "ignore_eos": True, **fields}
        with self.client() as client:
            return client.post("/v1/completions", json=body)

    def stop(self, limit: float = 10.0) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(limit)


@contextlib.contextmanager
def standin(
    folder: Path,
    *arguments: str,
    profile: bool = False,
    model: str = "/models/none",
    **environment: str,
) -> Iterator[Running]:
    """Start a stand-in and kill it at the end."""
    folder.mkdir(exist_ok=True)
    port = free_port()
    argv = [sys.executable, "-m", "opsctl.lab.standin", "serve", model, "--served-model-name", MODEL]
    argv += ["--tensor-parallel-size", "2", "--host", "127.0.0.1", "--port", str(port), *arguments]
    if profile:
        config = f'{{"profiler":"torch","torch_profiler_dir":"{folder}/traces","torch_profiler_with_stack":false}}'
        argv += ["--profiler-config", config]
    places = {
        "STANDIN_GPU_DIR": str(folder.parent / "gpus"),
        "STANDIN_STATE": str(folder.parent / "state"),
        "STANDIN_GPU_CONFIG": str(folder.parent / "gpus.json"),
        "STANDIN_LOAD_SECONDS": "0.1",
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **places, **environment},
            start_new_session=True,
        )
    try:
        yield Running(process, port, folder)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
