"""collectives: all-reduce and its kin at a model's own message sizes, over the ranks of this host, or of several.

Ranks are processes of their own (``collectives_rank.py``), one group for each set of environment variables, because
NCCL reads them once. The results are the same on every rank; the first rank of this host says them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import selectors
import socket
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from opsctl.payload import records
from opsctl.payload.errors import PayloadError
from opsctl.payload.gemm import self_command
from opsctl.payload.output import Output
from opsctl.payload.records import CellRecord, Record, many


@dataclass(frozen=True)
class Rendezvous(Record):
    """Where several hosts meet: each runs this same stage with its own ``node``."""

    address: str = "127.0.0.1"
    port: int = 0
    node: int = 0
    nodes: int = 1


@dataclass(frozen=True)
class CellSpec(Record):
    """One collective at one message, with the environment of its group of ranks."""

    id: str
    op: str
    bytes: int
    graph: str = "off"
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Spec(records.Spec):
    """What is measured. Limits are seconds; ``world_size`` counts the ranks of all hosts."""

    world_size: int
    backend: str = "auto"
    cells: tuple[CellSpec, ...] = many(CellSpec)
    repetitions: int = 200
    smoke_limit: float = 60.0
    limit: float = 3600.0
    rendezvous: Rendezvous | None = field(default=None, metadata={"of": Rendezvous})


@dataclass(frozen=True)
class Work(Record):
    """What one group of ranks does: a smoke test, a look at the links between GPUs, or cells."""

    backend: str
    environment: dict[str, str] = field(default_factory=dict)
    cells: tuple[CellSpec, ...] = many(CellSpec)
    repetitions: int = 0
    smoke: tuple[str, ...] = ()
    p2p: bool = False


_SILENCE = 90.0  # seconds for one cell
_START = 180.0  # importing torch, making the group
_MOST_FAILURES = 3  # of one set of variables
_RETRY = 0.5  # seconds between two attempts to connect
_SIOCGIFADDR = 0x8915
ONE_GPU = "one GPU: there is nothing to exchange"


def free_port() -> int:
    """Return a TCP port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def interface_towards(address: str) -> str | None:
    """Return the network interface by which this host reaches an address; None where it cannot be told."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # sends nothing: only the route is looked up
            own = probe.getsockname()[0]
            for _, name in socket.if_nameindex():
                request = struct.pack("256s", name.encode()[:15])
                with contextlib.suppress(OSError):
                    answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                    if socket.inet_ntoa(answer[20:24]) == own:
                        return name
    except OSError:
        return None
    return None


def meet(rendezvous: Rendezvous, limit: float) -> None:
    """Wait until every host of the run is here: each may come out of its swap minutes after another.

    The first host listens at its address; the others connect until it accepts. Raises PayloadError at the limit.
    """
    node, nodes = rendezvous.node, rendezvous.nodes
    place = (rendezvous.address, rendezvous.port)
    end = time.monotonic() + limit
    connected: list[socket.socket] = []
    try:
        if node == 0:
            with socket.create_server(place, reuse_port=False) as server:
                while len(connected) < nodes - 1:
                    server.settimeout(max(0.01, end - time.monotonic()))
                    connected.append(server.accept()[0])
                for connection in connected:
                    connection.sendall(b"go")
            return
        while not _connect(place, end):
            time.sleep(_RETRY)
    except TimeoutError:
        msg = f"the {nodes} hosts of this run did not meet at {place[0]}:{place[1]} within {limit:.0f} s"
        raise PayloadError(msg) from None
    except OSError as error:
        msg = f"the hosts cannot meet at {place[0]}:{place[1]}: {error.strerror or error}"
        raise PayloadError(msg) from error
    finally:
        for connection in connected:
            connection.close()


def _connect(place: tuple[str, int], end: float) -> bool:
    """Return whether the first host accepted and sent "go". Raises TimeoutError once ``end`` has passed."""
    if time.monotonic() > end:
        raise TimeoutError
    with contextlib.suppress(ConnectionError, TimeoutError):
        connection = socket.create_connection(place, timeout=max(0.01, min(5.0, end - time.monotonic())))
        with connection:
            connection.settimeout(max(0.01, end - time.monotonic()))
            return connection.recv(2) == b"go"
    return False


class Group:
    """The ranks of one process group on this host."""

    def __init__(self, world: int, where: Rendezvous, work: Work, port: int, folder: Path) -> None:
        nodes, node = where.nodes, where.node
        if world % nodes:
            msg = f"{world} ranks cannot be spread evenly over {nodes} hosts"
            raise PayloadError(msg)
        local = world // nodes
        address = where.address
        path = folder / "collectives-work.json"
        path.write_text(json.dumps(work.to_dict()), encoding="utf-8")
        self.log = (folder / "collectives-ranks.stderr").open("ab")
        base = {**os.environ, **work.environment}
        interface = interface_towards(address)
        if interface:
            # Without it gloo and NCCL take the address of the host's name, which need not be reachable, or exist.
            base.setdefault("GLOO_SOCKET_IFNAME", interface)
            if nodes > 1:
                base.setdefault("NCCL_SOCKET_IFNAME", interface)
        self.processes = []
        for place in range(local):
            environment = {
                **base,
                "RANK": str(node * local + place),
                "LOCAL_RANK": str(place),
                "WORLD_SIZE": str(world),
                "MASTER_ADDR": address,
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": base.get("OMP_NUM_THREADS", "1"),
            }
            self.processes.append(
                subprocess.Popen(
                    [*self_command(), "--worker", "collectives_rank", str(path)],
                    stdout=subprocess.PIPE,
                    stderr=self.log,
                    stdin=subprocess.DEVNULL,
                    env=environment,
                )
            )

    def messages(self, first_limit: float, limit: float) -> Iterator[dict[str, Any]]:
        """Yield the ranks' messages, until all ranks have ended or one has failed: the others would wait for it.

        What was written before a failure is still read: it says which cells have a result. Raises TimeoutError after
        ``first_limit`` seconds without a first message, or ``limit`` seconds without a further one.
        """
        rest = dict.fromkeys(range(len(self.processes)), b"")
        heard = failed = False
        with selectors.DefaultSelector() as selector:
            for place, process in enumerate(self.processes):
                if process.stdout is not None:
                    selector.register(process.stdout, selectors.EVENT_READ, place)
            while selector.get_map():
                ready = selector.select(0 if failed else limit if heard else first_limit)
                if not ready:
                    if failed:
                        return
                    raise TimeoutError
                for key, _ in ready:
                    data = os.read(key.fd, 65536)
                    if not data:
                        selector.unregister(key.fd)
                        failed = self.processes[key.data].wait() != 0 or failed
                        continue
                    *whole, rest[key.data] = (rest[key.data] + data).split(b"\n")
                    for line in whole:
                        if line.startswith(b'{"collectives":'):
                            heard = True
                            yield json.loads(line)["collectives"]

    def close(self) -> list[int]:
        """End all ranks; return their statuses."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        statuses = [process.wait() for process in self.processes]
        for process in self.processes:
            if process.stdout is not None:
                process.stdout.close()
        self.log.close()
        return statuses


def _last_error_line(folder: Path) -> str:
    path = folder / "collectives-ranks.stderr"
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    errors = [line.strip() for line in lines if line.strip() and not line.startswith((" ", "[W", "[I"))]
    return errors[-1][:300] if errors else "nothing on stderr"


class _Measurement:
    """All groups, one after another."""

    def __init__(self, spec: Spec, output: Output) -> None:
        self.spec = spec
        self.output = output
        self.end = time.monotonic() + spec.limit
        self.where = spec.rendezvous or Rendezvous()
        self.port = self.where.port
        self.alone = self.where.nodes == 1
        self.states: dict[str, str] = dict.fromkeys(output.verified, "verified")

    def _next_port(self) -> int:
        if not self.port:
            return free_port()
        # Each group of a run over several hosts meets at a port of its own: all hosts count alike.
        self.port += 1
        return self.port - 1

    def _group(self, work: Work) -> Group:
        return Group(self.spec.world_size, self.where, work, self._next_port(), self.output.folder)

    def smoke(self) -> None:
        """Run each operation once, small, within its own limit. Raises PayloadError when that does not work."""
        limit = self.spec.smoke_limit
        if not self.alone:
            meet(replace(self.where, port=self._next_port()), max(1.0, self.end - time.monotonic()))
        ops = sorted({cell.op for cell in self.spec.cells})
        self.output.progress("smoke test", 0, 1)
        began = time.monotonic()
        group = self._group(Work(self.spec.backend, smoke=tuple(ops)))
        facts: dict[str, Any] = {}
        done = False
        try:
            for message in group.messages(limit, limit):
                facts |= message.get("environment", {})
                done = done or bool(message.get("smoke"))
                if time.monotonic() - began > limit:
                    done = False
                    break
        except TimeoutError:
            msg = (
                f"smoke test: {', '.join(ops)} over {self.spec.world_size} ranks did not end within {limit:g} s; "
                f"stderr: {_last_error_line(self.output.folder)}"
            )
            raise PayloadError(msg) from None
        finally:
            statuses = group.close()
        if not done:
            msg = f"smoke test: ranks ended with {statuses}: {_last_error_line(self.output.folder)}"
            raise PayloadError(msg)
        self.output.environment({"collectives": facts})
        took = f"right results in {time.monotonic() - began:.1f} s"
        self.output.evidence(f"smoke test: {', '.join(ops)} over {self.spec.world_size} ranks", took)

    def measure(self, environment: Mapping[str, str], cells: Sequence[CellSpec]) -> None:
        """Run the cells of one set of variables; a group that fails or hangs costs the cell that it was at."""
        left = {cell.id: cell for cell in cells if self.states.get(cell.id) != "verified"}
        failures = 0
        while left:
            work = Work(self.spec.backend, dict(environment), tuple(left.values()), self.spec.repetitions)
            at, reason = self._once(work, left)
            if not left:
                return
            failures += 1
            # Over several hosts the others cannot know which cell it was: one failure ends the set.
            failed = [at] if at in left and self.alone and failures < _MOST_FAILURES else list(left)
            for name in failed:
                self._record(left, CellRecord(name, "failed", reason))

    def _once(self, work: Work, left: dict[str, CellSpec]) -> tuple[str, str]:
        """Run one group. Returns the cell at which it ended, and why.

        Ranks run in step, but their messages arrive in any order: the cell is the last that any of them began.
        """
        order = {cell.id: place for place, cell in enumerate(work.cells)}
        at = ""
        group = self._group(work)
        hung = False
        try:
            for message in group.messages(_START, _SILENCE):
                at = max(at, message.get("at", ""), key=lambda name: order.get(name, -1))
                if "cell" in message:
                    self._record(left, CellRecord.from_dict(message["cell"]))
                if time.monotonic() > self.end:
                    msg = f"the limit of {self.spec.limit:g} s is reached"
                    raise PayloadError(msg)
        except TimeoutError:
            hung = True
        finally:
            statuses = group.close()
        if hung:
            return at, f"hung: no end within {_SILENCE:g} s; stderr: {_last_error_line(self.output.folder)}"
        return at, f"ranks ended with {statuses}: {_last_error_line(self.output.folder)}"

    def _record(self, left: dict[str, CellSpec], cell: CellRecord) -> None:
        left.pop(cell.id, None)
        self.states[cell.id] = cell.state
        self.output.write(cell)
        self.output.progress(cell.id, len(self.states), len(self.spec.cells), every=1.0)


def _fit(spec: Spec, output: Output) -> str:
    """Look for the GPUs that the ranks want, and at how they reach each other.

    Returns why nothing here can be measured; "" where it can. Raises PayloadError where ranks would share a GPU.
    """
    if spec.backend == "gloo":
        return ""
    group = Group(1, Rendezvous(), Work("none", p2p=True), free_port(), output.folder)
    facts: dict[str, Any] = {}
    try:
        for message in group.messages(_START, _SILENCE):
            facts |= message
    except TimeoutError:
        facts["p2p_findings"] = [f"a copy between two GPUs did not end within {_SILENCE:g} s: P2P hangs here"]
    finally:
        group.close()
    output.environment({"p2p_findings": facts.get("p2p_findings", []), "p2p_copies": facts.get("p2p_copies", [])})
    nodes = (spec.rendezvous or Rendezvous()).nodes
    wanted, there = spec.world_size // nodes, facts.get("gpus")
    if there is None:
        msg = f"the GPUs cannot be asked: {_last_error_line(output.folder)}"
        raise PayloadError(msg)
    if there == 1 and nodes == 1:
        output.evidence("GPUs that torch sees on this host", f"1, and {wanted} ranks were asked for")
        return ONE_GPU
    # `auto` is NCCL wherever there is a GPU, and NCCL refuses two ranks on one.
    if there < wanted and (there or spec.backend == "nccl"):
        msg = f"{wanted} ranks want a GPU each, and this host has {there}"
        raise PayloadError(msg)
    return ""


def run(spec: Spec, output: Output) -> tuple[str, str]:
    """Measure every cell. Returns the state and reason of the ``end`` record."""
    cells = spec.cells
    if all(cell.id in output.verified for cell in cells):
        return "verified", f"{len(cells)} of {len(cells)} cells had been measured already"
    try:
        unfit = _fit(spec, output)
        if unfit:
            for cell in cells:
                output.cell(cell.id, "skipped", reason=unfit)
            return "skipped", unfit
        measurement = _Measurement(spec, output)
        measurement.smoke()
    except PayloadError as error:
        for cell in cells:
            if cell.id not in output.verified:
                output.cell(cell.id, "failed", reason=str(error))
        return "failed", str(error)
    sets: dict[str, list[CellSpec]] = {}
    for cell in cells:
        sets.setdefault(json.dumps(cell.environment, sort_keys=True), []).append(cell)
    for variables, group in sets.items():
        measurement.measure(json.loads(variables), group)
    states = list(measurement.states.values())
    counted = f"{states.count('verified')} of {len(cells)} cells measured"
    return ("failed" if "failed" in states or "verified" not in states else "verified"), counted
