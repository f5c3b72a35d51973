"""Real servers on a lab host: CPU builds of vLLM (``script/vllm-cpu``) and of llama.cpp (``script/llama-cpp``)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from opsctl.errors import UnfitError
from opsctl.lab.spec import CHECKOUT, SeedFile

# One core a rank; no token leaves for a hub; the shared-memory communicator stays off, so gloo is seen in traces.
_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENGINE_READY_TIMEOUT_S": "3600",
    "HOME": "/root",
}


@dataclass(frozen=True)
class RealVllm:
    """Production served by a real vLLM. ``environment`` is the folder that script/vllm-cpu made."""

    environment: Path = CHECKOUT / ".venv-vllm"
    unit: str = "vllm-kimi-k25-int4"
    served: str = "kimi-k2.5"
    port: int = 8000
    tensor_parallel: int = 2
    load_seconds: float = 600.0
    """Longest time until it answers: a minute on two idle cores, several on busy ones."""

    @property
    def model(self) -> str:
        """Folder of the tiny model, seen at the same path on the host."""
        return str(self.environment / "tiny-model")

    @property
    def python(self) -> str:
        """Python of the serving environment, for the inventory."""
        return str(self.environment / "bin" / "python")

    @property
    def service_name(self) -> str:
        """Name of the unit, with its type."""
        return f"{self.unit}.service"

    @property
    def url(self) -> str:
        """Where it listens, as seen on the host."""
        return f"http://127.0.0.1:{self.port}"

    def binds(self) -> tuple[str, ...]:
        """Return the folders that its host needs. Raises UnfitError when the environment is not there."""
        if not (self.environment / "bin" / "vllm").exists() or not Path(self.model).exists():
            raise UnfitError(
                "there is no real vLLM on this machine", where=str(self.environment), hint="script/vllm-cpu"
            )
        return (f"{self.environment}:{self.environment}:ro",)

    def argv(self) -> tuple[str, ...]:
        """Return its command line."""
        flags = ("--served-model-name", self.served, "--tensor-parallel-size", str(self.tensor_parallel))
        small = ("--max-model-len", "1024", "--dtype", "bfloat16", "--enforce-eager")
        where = ("--host", "127.0.0.1", "--port", str(self.port))
        return (str(self.environment / "bin" / "vllm"), "serve", self.model, *flags, *small, *where)

    def text(self) -> str:
        """Return the unit file."""
        variables = "\n".join(f"Environment={name}={value}" for name, value in _ENVIRONMENT.items())
        return f"""\
[Unit]
Description=vLLM serving {self.served}
After=network.target

[Service]
ExecStart={" ".join(self.argv())}
{variables}
KillMode=control-group
TimeoutStopSec=60

[Install]
WantedBy=multi-user.target
"""

    def files(self) -> dict[str, SeedFile]:
        """Return the files of the host's first boot."""
        path = f"/etc/systemd/system/{self.service_name}"
        wants = f"/etc/systemd/system/multi-user.target.wants/{self.service_name}"
        return {path: SeedFile(self.text()), wants: SeedFile(link_to=path)}


@dataclass(frozen=True)
class RealLlamaCpp:
    """Production served by a real llama.cpp server. ``environment`` is the folder that script/llama-cpp made."""

    environment: Path = CHECKOUT / ".venv-llama-cpp"
    unit: str = "llama-tiny"
    served: str = "tiny"
    port: int = 8080
    tensor_parallel: int = 1
    load_seconds: float = 60.0
    """Longest time until it answers: a second on an idle core."""

    @property
    def python(self) -> str:
        """Python of the serving environment, for the inventory."""
        return str(self.environment / "bin" / "python")

    @property
    def service_name(self) -> str:
        """Name of the unit, with its type."""
        return f"{self.unit}.service"

    @property
    def url(self) -> str:
        """Where it listens, as seen on the host."""
        return f"http://127.0.0.1:{self.port}"

    def binds(self) -> tuple[str, ...]:
        """Return the folders that its host needs. Raises UnfitError when the environment is not there."""
        if not (self.environment / "bin" / "llama-server").exists() or not (self.environment / "tiny.gguf").exists():
            raise UnfitError(
                "there is no real llama.cpp on this machine", where=str(self.environment), hint="script/llama-cpp"
            )
        return (f"{self.environment}:{self.environment}:ro",)

    def argv(self) -> tuple[str, ...]:
        """Return its command line: four slots of 1024 tokens each."""
        flags = ("--alias", self.served, "--ctx-size", "4096", "--parallel", "4", "--metrics")
        where = ("--host", "127.0.0.1", "--port", str(self.port))
        return (f"{self.environment}/bin/llama-server", "--model", f"{self.environment}/tiny.gguf", *flags, *where)

    def files(self) -> dict[str, SeedFile]:
        """Return the files of the host's first boot."""
        path = f"/etc/systemd/system/{self.service_name}"
        wants = f"/etc/systemd/system/multi-user.target.wants/{self.service_name}"
        text = f"""\
[Unit]
Description=llama.cpp serving {self.served}

[Service]
ExecStart={" ".join(self.argv())}
KillMode=control-group
TimeoutStopSec=20

[Install]
WantedBy=multi-user.target
"""
        return {path: SeedFile(text), wants: SeedFile(link_to=path)}
