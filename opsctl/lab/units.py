"""Stand-in services of a lab host: unit files, the environment in /opt/vllm, nvidia-smi, faults."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from opsctl.deadline import Deadline
from opsctl.lab import releases
from opsctl.lab.hosts import LabHost
from opsctl.lab.spec import SeedFile
from opsctl.lab.standin.faults import FAULT_FOLDER, STATE_FOLDER, parse
from opsctl.lab.standin.gpus import CONFIG, GpuConfig
from opsctl.lab.standin.settings import VERSION

ENVIRONMENT = "/opt/vllm"
STANDIN = "/opt/standin"
"""The stand-in server's own environment, where /opt/vllm has a Debian release's Python."""
MODELS = "/models"
_STANDIN = Path(__file__).parent / "standin"


@dataclass(frozen=True)
class Standin:
    """One stand-in service. The defaults are production as ``units/`` has it, small and quick.

    ``environment`` and ``fault`` go into the unit, so a variant inherits them; ``set_fault`` is for one unit alone.
    ``service`` adds lines under [Service], ``unit_section`` under [Unit].
    """

    unit: str = "vllm-kimi-k25-int4"
    served: str = "kimi-k2.5"
    model: str = f"{MODELS}/kimi-k2.5-int4"
    port: int = 8000
    tensor_parallel: int = 2
    engine: Literal["paced", "torch"] = "paced"
    load_seconds: float = 0.2
    fault: str = ""
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    service: tuple[str, ...] = ()
    unit_section: tuple[str, ...] = ()
    enabled: bool = True
    scope: Literal["system", "user"] = "system"

    @property
    def service_name(self) -> str:
        """Name of the unit, with its type."""
        return f"{self.unit}.service"

    @property
    def url(self) -> str:
        """Where it listens, as seen on the host."""
        return f"http://127.0.0.1:{self.port}"

    def argv(self) -> tuple[str, ...]:
        """Return its command line."""
        flags = ("--served-model-name", self.served, "--tensor-parallel-size", str(self.tensor_parallel))
        where = ("--host", "127.0.0.1", "--port", str(self.port))
        return (f"{ENVIRONMENT}/bin/vllm", "serve", self.model, *flags, *where, *self.arguments)

    def text(self) -> str:
        """Return the unit file."""
        parse(self.fault)  # a misspelt fault is an error here, not in the host's journal
        variables = {
            "STANDIN_ENGINE": self.engine,
            "STANDIN_LOAD_SECONDS": f"{self.load_seconds:g}",
            "VLLM_ENGINE_READY_TIMEOUT_S": "3600",
            **({"STANDIN_FAULT": self.fault} if self.fault else {}),
            **self.environment,
        }
        lines = ["[Unit]", f"Description=Stand-in for vLLM serving {self.served}", "After=network.target"]
        lines += [*self.unit_section, "", "[Service]", "Type=simple", f"ExecStart={' '.join(self.argv())}"]
        lines += [f'Environment="{name}={value}"' for name, value in variables.items()]
        lines += ["KillMode=control-group", "TimeoutStopSec=10", *self.service, "", "[Install]"]
        lines.append("WantedBy=default.target" if self.scope == "user" else "WantedBy=multi-user.target")
        return "\n".join(lines) + "\n"

    def files(self) -> dict[str, SeedFile]:
        """Return the files of the unit; for an instance of a template (NAME@INSTANCE), those of the template."""
        folder = f"/etc/systemd/{self.scope}"
        stem, at, _ = self.unit.partition("@")
        path = f"{folder}/{stem}{at}.service"
        wanted = "default.target.wants" if self.scope == "user" else "multi-user.target.wants"
        link = {f"{folder}/{wanted}/{self.service_name}": SeedFile(link_to=path)} if self.enabled else {}
        return {path: SeedFile(self.text()), **link}


def router(of: Standin, port: int = 9000, *, release: str = "") -> dict[str, SeedFile]:
    """Return the files of ``vllm-router.service``, which depends on production by Requires=."""
    text = f"""\
[Unit]
Description=Router in front of {of.unit}
Requires={of.service_name}
After={of.service_name}

[Service]
ExecStart={STANDIN if release else ENVIRONMENT}/bin/python -m opsctl.lab.standin.router {port} {of.port}

[Install]
WantedBy=multi-user.target
"""
    path = "/etc/systemd/system/vllm-router.service"
    wants = "/etc/systemd/system/multi-user.target.wants/vllm-router.service"
    return {path: SeedFile(text), wants: SeedFile(link_to=path)}


def environment_files(version: str = VERSION, *, release: str = "") -> dict[str, SeedFile]:
    """Return a serving environment in /opt/vllm that is made of this one's packages, with ``vllm`` in its bin.

    Its metadata says that vLLM of this version is installed, as a real environment's does. On a host of a Debian
    release its Python is the release's own; the stand-in server itself runs with this machine's.
    """
    base = os.path.realpath(sys.executable)
    server = STANDIN if release else ENVIRONMENT
    program = f"#!{server}/bin/python\nimport sys\n\nfrom opsctl.lab.standin.__main__ import main\n\nsys.exit(main())\n"
    smi = f'#!/bin/sh\nexec {base} -I -S {_STANDIN / "nvidia_smi.py"} "$@"\n'
    # Services of any user hold the same GPUs.
    places = "".join(f"d {place} 0777\n" for place in ("/run/opsctl-lab", "/run/opsctl-lab/gpus", str(STATE_FOLDER)))
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    packages = f"lib/python{own}/site-packages"
    files = {
        "/etc/tmpfiles.d/opsctl-lab.conf": SeedFile(places),
        **_python_files(server, base, own),
        f"{server}/{packages}/standin.pth": SeedFile(
            f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
        ),
        f"{ENVIRONMENT}/bin/vllm": SeedFile(program, 0o755),
        "/usr/local/bin/nvidia-smi": SeedFile(smi, 0o755),
    }
    if release:
        theirs = releases.find(release).python
        packages = f"lib/python{theirs}/site-packages"
        files |= _python_files(ENVIRONMENT, f"/usr/bin/python{theirs}", theirs)
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
    return files | {f"{ENVIRONMENT}/{packages}/vllm-{version}.dist-info/METADATA": SeedFile(metadata)}


def _python_files(folder: str, base: str, version: str) -> dict[str, SeedFile]:
    """Return the files of a virtual environment of the Python at ``base``."""
    config = f"home = {Path(base).parent}\ninclude-system-site-packages = false\nversion = {version}\n"
    return {
        f"{folder}/pyvenv.cfg": SeedFile(config),
        f"{folder}/bin/python": SeedFile(link_to=base),
        f"{folder}/bin/python3": SeedFile(link_to="python"),
    }


def gpu_files(config: GpuConfig) -> dict[str, SeedFile]:
    """Return the file that describes a host's GPUs."""
    return {str(CONFIG): SeedFile(config.to_json())}


def model_files() -> dict[str, SeedFile]:
    """Return the served model's config.json: what the paced engine's model folder holds."""
    from opsctl.lab.standin.weights import CONFIG as MODEL_CONFIG  # noqa: PLC0415 - numpy is not everywhere

    return {f"{Standin().model}/config.json": SeedFile(json.dumps(MODEL_CONFIG, indent=1))}


def install(host: LabHost, *standins: Standin, gpus: GpuConfig | None = None, start: bool = True) -> None:
    """Put stand-in services on a running host; start them and wait until they answer (unless not ``start``)."""
    files = {**environment_files(release=host.spec.release), **gpu_files(gpus or GpuConfig())}
    if all(standin.engine == "paced" for standin in standins):
        files |= model_files()
    for standin in standins:
        files |= standin.files()
    host.write_files(files)
    host.exec("systemd-tmpfiles", "--create", "/etc/tmpfiles.d/opsctl-lab.conf")
    host.systemctl("daemon-reload")
    if start:
        host.systemctl("start", *(standin.service_name for standin in standins))
        for standin in standins:
            await_answer(host, standin, Deadline(30, f"start of {standin.unit}"))


class Server(Protocol):
    """What the lab needs to know of a service that serves a model: a Standin, or a RealVllm (real.py)."""

    @property
    def unit(self) -> str:
        """Name of the unit, without its type."""
        ...

    @property
    def served(self) -> str:
        """Served model name."""
        ...

    @property
    def url(self) -> str:
        """Where it listens, as seen on the host."""
        ...

    @property
    def tensor_parallel(self) -> int:
        """Number of ranks."""
        ...

    @property
    def load_seconds(self) -> float:
        """How long its load may take."""
        ...


def await_answer(host: LabHost, standin: Server, deadline: Deadline) -> None:
    """Wait until /health answers 200. Raises DeadlineExceeded with the unit's last lines."""
    asked = ("curl", "-s", "-o", "/dev/null", "-m", "1", "-w", "%{http_code}", f"{standin.url}/health")
    while host.exec(*asked, check=False).stdout != "200":
        if deadline.expired:
            deadline.check(seen=journal(host, standin.unit)[-1500:], where=f"{standin.unit} on {host.name}")
        time.sleep(0.05)


def journal(host: LabHost, unit: str) -> str:
    """Return what a unit logged in this boot."""
    return host.exec("journalctl", "-b", "--no-pager", "-a", "-o", "cat", "-u", f"{unit}.service").stdout


def set_fault(host: LabHost, unit: str, fault: str) -> None:
    """Give one unit a fault for its next starts, "" to take it away; survives a reboot."""
    parse(fault)
    path = FAULT_FOLDER / f"{unit}.service"
    if fault:
        host.write_file(str(path), fault)
    else:
        host.exec("rm", "-f", str(path))


def set_gpus(host: LabHost, config: GpuConfig) -> None:
    """Change what the host's GPUs are like, at once."""
    host.write_file(str(CONFIG), config.to_json())


def breaches(host: LabHost) -> list[dict[str, Any]]:
    """Return every time that two servers wanted the same GPU on this host: there should be none."""
    path = str(STATE_FOLDER / "gpu-breaches.jsonl")
    return [json.loads(line) for line in host.read_file(path).splitlines()] if host.exists(path) else []


def all_files(
    standins: Iterable[Standin], *, gpus: GpuConfig, with_router: bool = False, release: str = ""
) -> dict[str, SeedFile]:
    """Return everything that a serving lab host has from its first boot on."""
    known = tuple(standins)
    files = {**environment_files(release=release), **gpu_files(gpus)}
    for standin in known:
        files |= standin.files()
    return files | (router(known[0], release=release) if with_router else {})
