"""What runs on the host: the measuring programs, with the serving environment's Python (3.9 or newer).

Nothing here may import a package that the zipapp does not carry, except torch and vLLM where a stage looks
for them: standard library, ``httpx`` and its own dependencies, ``opsctl.trace``. In particular nothing of
``opsctl.results`` (pydantic): records are plain dictionaries here, and become models on the controller.
"""

from __future__ import annotations

from pathlib import Path


def build_zipapp(out: Path) -> Path:
    """Write the payload into the folder ``out`` and return its path, ``opsctl-payload-<hash>.pyz``.

    The same installation gives the same bytes and so the same name: a host that has the file needs no second
    copy. Raises StageError when a package that it must carry is not installed.
    """
    from opsctl.payload.bundle import build

    return build(out)
