"""``python -m opsctl.lab.standin serve MODEL …``: what ``vllm serve MODEL …`` looks like from outside.

Also ``make-model DIR`` for the torch engine. See settings.py for the variables and faults.py for the faults.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn

from opsctl.lab.standin import logs
from opsctl.lab.standin.executor import Executor
from opsctl.lab.standin.faults import Faults, of_this_start
from opsctl.lab.standin.metrics import Metrics
from opsctl.lab.standin.paced import PacedExecutor
from opsctl.lab.standin.settings import Settings, read, release
from opsctl.lab.standin.surface import Surface


class _Server(uvicorn.Server):
    """uvicorn, with signals left to us."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _executor(settings: Settings, faults: Faults) -> Executor:
    if settings.engine == "paced":
        return PacedExecutor(settings, faults)
    from opsctl.lab.standin.torch_engine import TorchExecutor  # noqa: PLC0415 - torch is not everywhere

    return TorchExecutor(settings, faults)


async def _serve(settings: Settings, faults: Faults, executor: Executor) -> int:
    metrics = Metrics(settings.served_names[0], release(settings.version))
    surface = Surface(settings, faults, executor, metrics)
    application = surface.application()
    config = uvicorn.Config(
        application,
        host=settings.host,
        port=settings.port,
        timeout_graceful_shutdown=1,
        timeout_keep_alive=5,
    )
    server = _Server(config)
    status = 0

    def stop(*, failed: bool) -> None:
        nonlocal status
        status = max(status, int(failed))
        server.should_exit = True

    surface.on_death = lambda: stop(failed=True)
    loop = asyncio.get_running_loop()
    if "ignores-sigterm" not in faults:
        loop.add_signal_handler(
            signal.SIGTERM, lambda: loop.create_task(_shut_down(faults, lambda: stop(failed=False)))
        )
    loop.add_signal_handler(signal.SIGINT, lambda: stop(failed=False))
    listed = [(route.path, ", ".join(sorted(route.methods))) for route in application.routes]  # type: ignore[attr-defined]
    logs.routes(listed, settings.host, settings.port)
    stepping = asyncio.create_task(surface.scheduler.run())
    death = faults.value("dies-after")
    if death is not None:
        loop.call_later(death, _die, surface)
    try:
        await server.serve()
    except SystemExit:  # uvicorn could not listen: the port is taken
        status = 1
    stepping.cancel()
    return status


def _die(surface: Surface) -> None:
    logs.worker_died(logs.engine_core(os.getpid()), 1)
    surface.scheduler.die()


async def _shut_down(faults: Faults, stop: Callable[[], None]) -> None:
    logs.api_server().say("launcher.py:254", "[shutdown] API server: shutdown triggered")
    await asyncio.sleep(faults.value("slow-stop") or 0.0)
    stop()


def serve(argv: list[str]) -> int:
    """Load, then serve until SIGTERM; return the exit status."""
    settings = read(argv)
    if settings is None:
        return 0
    try:
        faults = of_this_start()
    except ValueError as error:
        sys.exit(f"standin: {error}")
    if "bad-arguments" in faults:
        sys.stderr.write(
            "usage: vllm serve [model_tag] [options]\nvllm serve: error: unrecognized arguments: --fault\n"
        )
        return 2
    if "ignores-sigterm" in faults:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logs.banner(settings.version, settings.model)
    executor = _executor(settings, faults)
    begun = time.monotonic()
    executor.load()
    logs.api_server().say("entry.py:136", f"Engine ready after {time.monotonic() - begun:.2f} s")
    return asyncio.run(_serve_then_exit(settings, faults, executor))


async def _serve_then_exit(settings: Settings, faults: Faults, executor: Executor) -> int:
    status = await _serve(settings, faults, executor)
    executor.close()
    # The engine's thread may sit in a step or a flush that never ends: it is not waited for, as in vLLM.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main() -> int:
    """Carry out one command line."""
    if sys.argv[1:2] == ["make-model"]:
        from opsctl.lab.standin.weights import make_model  # noqa: PLC0415 - numpy is not everywhere

        make_model(Path(sys.argv[2]))
        return 0
    return serve(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
