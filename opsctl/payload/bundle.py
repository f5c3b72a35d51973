"""Building the zipapp: our payload and the few pure-Python packages that it needs, with the same bytes each time."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path, PurePosixPath

import opsctl
from opsctl.errors import StageError

#: Brought along, because recent vLLM environments have moved to httpx2. anyio is left out: httpcore imports it
#: only for async use, and the payload uses httpx synchronously.
PACKAGES = ("httpx", "httpcore", "h11", "idna", "certifi")
#: Of our own: what runs on the host. Standard library only (tests/payload/test_bundle.py runs it on Python 3.9).
OWN = ("payload", "trace")
OWN_MODULES = ("__init__.py", "errors.py", "deadline.py")
_MAIN = b"from opsctl.payload.main import main\nraise SystemExit(main())\n"
_DATE = (1980, 1, 1, 0, 0, 0)


def _package_files(name: str) -> Iterator[tuple[str, bytes]]:
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError as error:
        raise StageError(
            f"the payload cannot be built: the package {name} is not installed",
            hint="install opsctl with its dependencies (script/setup)",
        ) from error
    for file in distribution.files or ():
        path = PurePosixPath(file)
        wanted = path.parts[0] == name and path.suffix not in {".pyc", ".so"} and "__pycache__" not in path.parts
        licence = path.parts[0].endswith(".dist-info") and "licen" in str(path).lower()
        # Not under .dist-info: a folder of that name without METADATA is a distribution without a name to
        # importlib.metadata, and torch, which asks for entry points when it is imported, dies of it.
        to = f"licences/{name}/{path.name}" if licence else str(path)
        if wanted or licence:
            yield to, Path(str(distribution.locate_file(file))).read_bytes()


def _own_files() -> Iterator[tuple[str, bytes]]:
    root = Path(opsctl.__file__).parent
    for module in OWN_MODULES:
        yield f"opsctl/{module}", (root / module).read_bytes()
    for room in OWN:
        for path in sorted((root / room).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield f"opsctl/{path.relative_to(root).as_posix()}", path.read_bytes()


def build(out: Path) -> Path:
    """Write ``out/opsctl-payload-<hash>.pyz`` and return it. See ``opsctl.payload.build_zipapp``."""
    files = dict(_own_files())
    for package in PACKAGES:
        files |= dict(_package_files(package))
    files["__main__.py"] = _MAIN
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, date_time=_DATE)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, files[name])
    data = buffer.getvalue()
    out.mkdir(parents=True, exist_ok=True)
    target = out / f"opsctl-payload-{hashlib.sha256(data).hexdigest()[:16]}.pyz"
    if not target.exists() or target.read_bytes() != data:
        part = target.with_suffix(".part")
        part.write_bytes(data)
        part.replace(target)
    return target
