"""A lab to rehearse on: hosts that serve a stand-in in production's place, and the inventory for them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from opsctl.deadline import Deadline
from opsctl.lab.hosts import LabHost
from opsctl.lab.inventory import as_yaml, inventory
from opsctl.lab.lab import Lab
from opsctl.lab.real import RealVllm
from opsctl.lab.spec import HostSpec
from opsctl.lab.standin.gpus import GpuConfig
from opsctl.lab.units import MODELS, Standin, all_files, await_answer

_READY_LIMIT = 90.0


def raise_lab(
    lab: Lab,
    names: list[str],
    standin: Standin,
    *,
    spec: HostSpec | None = None,
    with_router: bool = False,
) -> list[LabHost]:
    """Boot hosts that serve the stand-in from their first boot on, wait until it answers, write the inventory.

    Hosts that there are already are booted if they are off, and left as they are.
    """
    spec = spec or HostSpec()
    gpus = GpuConfig(count=standin.tensor_parallel)
    files = all_files([standin], gpus=gpus, with_router=with_router, release=spec.release)
    bind = f"{model_folder(lab)}:{MODELS}/{Path(standin.model).name}:ro"
    hosts = lab.up_all(names, replace(spec, binds=(*spec.binds, bind)).with_files(files))
    for host in hosts:
        await_answer(host, standin, Deadline(_READY_LIMIT + standin.load_seconds, f"start of {standin.unit}"))
    lab.inventory.write_text(as_yaml(inventory(lab.hosts(), standin, gpus=gpus.count)))
    return hosts


def raise_real(lab: Lab, names: list[str], server: RealVllm) -> list[LabHost]:
    """Boot hosts that serve by a real vLLM, one after the other, and write the inventory. Minutes on two cores."""
    spec = HostSpec(disk="4G", binds=server.binds(), files=server.files())
    hosts = lab.up_all(names, spec)
    for host in hosts:
        await_answer(host, server, Deadline(server.load_seconds, f"start of {server.unit}"))
    lab.inventory.write_text(as_yaml(inventory(lab.hosts(), server, python=server.python)))
    return hosts


def model_folder(lab: Lab) -> Path:
    """Return the lab's model, made where there is none: a random Llama in six real safetensors shards."""
    folder = lab.folder / "models" / Path(Standin().model).name
    if not folder.exists():
        from opsctl.lab.standin.weights import make_model  # noqa: PLC0415 - numpy is not everywhere

        part = folder.with_name(folder.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        make_model(part)
        part.rename(folder)
    return folder
