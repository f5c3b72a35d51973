"""Root file systems of Debian releases for lab hosts, and this machine's Python where a release lacks it.

A root is built by mmdebstrap once and kept in ``$XDG_CACHE_HOME/opsctl/lab``; hosts use it as the lower layer of their
disk, so they run the release's own systemd, D-Bus, sshd and Python. The stand-in server needs newer Python than the
oldest release has, so this machine's interpreter is brought along with the C library that it was built for: a copy
of the program is pointed at that library and bound over the original's path.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from opsctl.errors import OpsctlError, UnfitError

_PACKAGES = (
    "systemd", "systemd-sysv", "dbus", "dbus-user-session", "libpam-systemd", "openssh-server", "sudo",
    "iproute2", "iputils-ping", "procps", "hostname", "curl", "python3", "busybox", "strace", "ca-certificates",
)  # fmt: skip
_MIRROR = "http://deb.debian.org/debian"
_BUILD_LIMIT = 1200.0
_LIBRARIES = Path("/opt/opsctl-lab/lib")
"""Where a host of a release sees this machine's C library and what else its Python needs."""


@dataclass(frozen=True)
class Release:
    """A Debian release, as a lab host can run it."""

    name: str
    number: str
    systemd: int
    python: str
    """Version of its own Python, such as 3.9."""

    @property
    def suite(self) -> str:
        """The release proper, without backports."""
        return self.name.removesuffix("-backports")


RELEASES = (
    Release("bullseye", "11", 247, "3.9"),
    Release("bookworm", "12", 252, "3.11"),
    Release("bookworm-backports", "12-backports", 254, "3.11"),
    Release("trixie", "13", 257, "3.13"),
)


def find(word: str) -> Release:
    """Return a release by name or number. Raises UnfitError with those there are."""
    for release in RELEASES:
        if word in {release.name, release.number}:
            return release
    known = ", ".join(f"{release.name} ({release.number})" for release in RELEASES)
    raise UnfitError(f"the lab has no release {word!r}", wanted=f"one of {known}")


def root(release: Release) -> Path:
    """Return the root file system of a release, built where there is none yet: a minute or two.

    Raises UnfitError where this machine has no mmdebstrap, OpsctlError where the build fails.
    """
    recipe = hashlib.sha256(" ".join(_PACKAGES).encode()).hexdigest()[:12]
    place = _cache() / f"{release.name}-{recipe}"
    with _building(place):
        if not place.exists():
            part = place.with_name(place.name + ".part")
            shutil.rmtree(part, ignore_errors=True)
            print(f"building a root file system of Debian {release.name}: a minute or two", file=sys.stderr)
            _run(*_recipe(release, part))
            part.rename(place)
    return place


def _recipe(release: Release, place: Path) -> list[str]:
    """Return the command that builds a root; with backports, their systemd is the newest and so the one taken."""
    argv = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(_PACKAGES)}"]
    sources = [f"deb {_mirror()} {release.suite} main"]
    if release.name != release.suite:
        argv.append(f'--aptopt=APT::Default-Release "{release.name}"')
        sources.append(f"deb {_mirror()} {release.name} main")
    return [*argv, release.suite, str(place), *sources]


def binds() -> tuple[str, ...]:
    """Return the binds that give a host of a release this machine's Python, at the paths that it has here."""
    portable = str(_portable(Path(sys.executable).resolve()))
    folders = {str(name): portable for name in _names(Path(sys.executable))}
    folders |= {sysconfig.get_path("stdlib"): "", str(_typelibs()): ""}
    library = Path(sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("INSTSONAME") or "none")
    if library.exists():
        folders[str(library)] = ""
    found = tuple(f"{source or target}:{target}:ro" for target, source in folders.items() if Path(target).exists())
    return (f"{_machine_libraries()}:{_LIBRARIES}:ro", *found)


def _names(program: Path) -> list[Path]:
    """Return every path outside the virtual environment by which links lead from a program to itself."""
    found = [program]
    while found[-1].is_symlink():
        found.append(found[-1].parent / found[-1].readlink())
    return [path for path in found if not path.is_relative_to(sys.prefix)]


def _portable(program: Path) -> Path:
    """Return a copy of this machine's Python that finds its loader and C library in ``_LIBRARIES``."""
    loader = Path(_run("patchelf", "--print-interpreter", str(program)).strip()).name
    # A path of the older kind (force): it counts for what the interpreter's modules need as well, except where a
    # module has a path of its own, as pyenv builds them. What those need is loaded with the program.
    path = f"{sysconfig.get_config_var('LIBDIR')}:{_LIBRARIES}"
    changes = [
        [item for name in _module_libraries() for item in ("--add-needed", name)],
        # A call of its own: patchelf 0.14 writes a wrong path when it adds libraries in the same one (seen).
        ["--set-interpreter", f"{_LIBRARIES}/{loader}", "--force-rpath", "--set-rpath", path],
    ]
    seen = program.stat()
    key = hashlib.sha256(f"{program} {seen.st_size} {seen.st_mtime_ns} {changes}".encode()).hexdigest()[:12]
    copy = _cache() / f"{program.name}-{key}"
    with _building(copy):
        if not copy.exists():
            part = copy.with_name(copy.name + ".part")
            shutil.copy2(program, part)
            for options in changes:
                _run("patchelf", *options, str(part))
            part.rename(copy)
    return copy


def _module_libraries() -> list[str]:
    """Return the names of the libraries that the standard library's modules need, those for windows left out."""
    folder = Path(sysconfig.get_path("stdlib"), "lib-dynload")
    modules = [str(path) for path in folder.glob("*.so") if not path.name.startswith(("_tkinter.", "nis."))]
    lines = [line.split() for line in _run("ldd", *modules).splitlines()]
    return sorted({words[0] for words in lines if words[1:2] == ["=>"] and words[2].startswith("/")})


def _machine_libraries() -> Path:
    return Path("/usr/lib") / str(sysconfig.get_config_var("MULTIARCH") or "")


def _typelibs() -> Path:
    """Return the folder with which GObject introspection finds GLib: the D-Bus binding needs it."""
    return _machine_libraries() / "girepository-1.0"


def _cache() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "opsctl" / "lab"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _mirror() -> str:
    """Return the mirror that this machine's apt uses."""
    shown = _run("apt-get", "indextargets", "--format", "$(REPO_URI)").split()
    return next((uri for uri in shown if "security" not in uri), _MIRROR)


@contextmanager
def _building(place: Path) -> Iterator[None]:
    """Hold the lock of one thing in the cache: it is complete, or it is not there."""
    with place.with_name(place.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(*argv: str) -> str:
    if shutil.which(argv[0]) is None:
        raise UnfitError(f"a lab host of a Debian release needs {argv[0]}", hint="script/setup")
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_BUILD_LIMIT)
    if done.returncode != 0:
        raise OpsctlError(f"{argv[0]} failed", wanted=" ".join(argv), seen=done.stderr.strip()[-800:])
    return done.stdout
