"""vLLM's HTTP surface, as far as operations and benchmarks touch it: a Starlette application."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from opsctl.lab.standin import logs, traces
from opsctl.lab.standin.executor import EngineDeadError, Executor
from opsctl.lab.standin.faults import Faults
from opsctl.lab.standin.metrics import Metrics
from opsctl.lab.standin.scheduler import Scheduler
from opsctl.lab.standin.settings import Settings


class Refusal(Exception):
    """A request that is refused."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        error = {"message": message, "type": kind, "param": None, "code": status}
        self.response = JSONResponse({"error": error}, status_code=status)


def tokenize(text: str) -> tuple[int, ...]:
    """Return one token a byte."""
    return tuple(text.encode())


def detokenize(token: int) -> str:
    """Return a token's text: "" for the special ones, and for bytes that no letter begins or ends with."""
    return chr(token) if token < 128 else ""


class Surface:
    """The routes, over a scheduler."""

    def __init__(self, settings: Settings, faults: Faults, executor: Executor, metrics: Metrics) -> None:
        self.settings = settings
        self.faults = faults
        self.metrics = metrics
        self.scheduler = Scheduler(executor, metrics, on_death=self._die)
        self.on_death: Callable[[], None] = lambda: None
        self._executor = executor
        self._ready_since = time.monotonic()

    def _die(self) -> None:
        self.on_death()  # set by who runs the server, once there is one

    def application(self) -> Starlette:
        """Return the ASGI application. The profiler's routes exist only where the profiler is on."""
        routes = [
            Route("/health", self.health, methods=["GET"]),
            Route("/ping", self.health, methods=["GET", "POST"]),
            Route("/version", self.version, methods=["GET"]),
            Route("/load", self.load, methods=["GET"]),
            Route("/metrics", self.show_metrics, methods=["GET"]),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/completions", self.completions, methods=["POST"]),
        ]
        if self.settings.profiler is not None:
            routes.append(Route("/start_profile", self.start_profile, methods=["POST"]))
            routes.append(Route("/stop_profile", self.stop_profile, methods=["POST"]))
        guard = [Middleware(BaseHTTPMiddleware, dispatch=self._guard)] if self.settings.api_keys else []
        return Starlette(
            routes=routes,
            middleware=guard,
            exception_handlers={Refusal: _refuse, EngineDeadError: _engine_dead, 404: _not_found, 405: _not_found},
        )

    async def _guard(self, request: Request, forward: Callable[[Request], Awaitable[Response]]) -> Response:
        """Ask for the key on routes under /v1, and there alone, as vLLM does."""
        if request.url.path.startswith("/v1"):
            given = request.headers.get("authorization", "").encode()
            if not any(hmac.compare_digest(given, f"Bearer {key}".encode()) for key in self.settings.api_keys):
                return JSONResponse({"error": "Unauthorized"}, status_code=401)
        return await forward(request)

    # -- what is always there

    async def health(self, _: Request) -> Response:
        """Answer 200 as long as the flag says so: also when no completion would ever end."""
        return Response(status_code=503 if self.scheduler.dead else 200)

    async def version(self, _: Request) -> Response:
        """Answer the version that this stand-in claims."""
        return JSONResponse({"version": self.settings.version})

    async def load(self, _: Request) -> Response:
        """Answer the load as vLLM does without --enable-server-load-tracking."""
        return JSONResponse({"server_load": 0})

    async def show_metrics(self, _: Request) -> Response:
        """Answer Prometheus' page."""
        return PlainTextResponse(self.metrics.text(), media_type="text/plain; version=0.0.4")

    async def models(self, _: Request) -> Response:
        """Answer the served names."""
        about = {
            "object": "model",
            "created": int(time.time()),
            "owned_by": "vllm",
            "root": self.settings.model,
            "parent": None,
            "max_model_len": self.settings.max_model_len,
        }
        return JSONResponse({"object": "list", "data": [{"id": name, **about} for name in self.settings.served_names]})

    async def tokenize(self, request: Request) -> Response:
        """Answer the tokens of a prompt."""
        tokens = tokenize(str((await _body(request)).get("prompt", "")))
        longest = self.settings.max_model_len
        return JSONResponse({"count": len(tokens), "max_model_len": longest, "tokens": tokens, "token_strs": None})

    async def detokenize(self, request: Request) -> Response:
        """Answer the text of tokens."""
        tokens = (await _body(request)).get("tokens", [])
        return JSONResponse({"prompt": "".join(detokenize(token) for token in tokens)})

    # -- completions

    async def completions(self, request: Request) -> Response:
        """Answer a completion, streamed or whole."""
        body = await _body(request)
        prompt, max_tokens = self._check(body)
        await self._faults_of_completions()
        if "no-tokens" in self.faults:
            max_tokens = 0
        tokens = self.scheduler.generate(prompt, max_tokens, ignore_eos=bool(body.get("ignore_eos")))
        about = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": body.get("model") or self.settings.served_names[0],
        }
        if body.get("stream"):
            usage_wanted = bool((body.get("stream_options") or {}).get("include_usage"))
            events = self._events(about, tokens, len(prompt), max_tokens, usage_wanted=usage_wanted)
            return StreamingResponse(events, media_type="text/event-stream")
        produced = [token async for token in tokens] if max_tokens else []
        choice = _choice("".join(map(detokenize, produced)), _reason(len(produced), max_tokens))
        self.metrics.count("request_success", 1)
        return JSONResponse({**about, "choices": [choice], "usage": _usage(len(prompt), len(produced))})

    def _check(self, body: dict[str, Any]) -> tuple[tuple[int, ...], int]:
        model = body.get("model")
        if model and model not in self.settings.served_names:
            raise Refusal(404, "NotFoundError", f"The model `{model}` does not exist.")
        prompt = body.get("prompt")
        if isinstance(prompt, str):
            tokens = tokenize(prompt)
        elif isinstance(prompt, list) and all(isinstance(token, int) for token in prompt):
            tokens = tuple(prompt)
        else:
            raise Refusal(400, "BadRequestError", "prompt: a string or a list of token ids is needed")
        max_tokens = body.get("max_tokens", 16)
        if not isinstance(max_tokens, int) or max_tokens < 1:
            raise Refusal(400, "BadRequestError", f"max_tokens must be at least 1, got {max_tokens}.")
        if not tokens:
            raise Refusal(400, "BadRequestError", "The decoder prompt cannot be empty")
        if len(tokens) + max_tokens > self.settings.max_model_len:
            longest = self.settings.max_model_len
            raise Refusal(
                400,
                "BadRequestError",
                f"This model's maximum context length is {longest} tokens. However, you requested {max_tokens} output "
                f"tokens and your prompt contains {len(tokens)} input tokens.",
            )
        return tokens, max_tokens

    async def _faults_of_completions(self) -> None:
        after = self.faults.value("dead-after")
        dead = after is not None and time.monotonic() - self._ready_since > after
        if dead or "healthy-but-dead" in self.faults:
            await asyncio.Event().wait()
        if "failing-completions" in self.faults:
            raise Refusal(500, "InternalServerError", "EngineCore encountered an issue.")

    async def _events(
        self,
        about: dict[str, Any],
        tokens: AsyncIterator[int],
        prompt: int,
        max_tokens: int,
        *,
        usage_wanted: bool,
    ) -> AsyncIterator[str]:
        produced = 0
        if max_tokens:
            async for token in tokens:
                produced += 1
                reason = _reason(produced, max_tokens) if produced == max_tokens else None
                yield _event({**about, "choices": [_choice(detokenize(token), reason)]})
        if produced < max_tokens:
            yield _event({**about, "choices": [_choice("", "stop")]})
        if usage_wanted:
            yield _event({**about, "choices": [], "usage": _usage(prompt, produced)})
        self.metrics.count("request_success", 1)
        yield "data: [DONE]\n\n"

    # -- the profiler

    async def start_profile(self, _: Request) -> Response:
        """Start recording in every worker; 200 proves nothing."""
        speaker = logs.api_server()
        speaker.say("api_router.py:39", "Starting profiler...")
        if "hanging-start-profile" in self.faults:
            await asyncio.Event().wait()
        if "failing-start-profile" in self.faults:
            speaker.error("wrapper.py:61", "Failed to start profiler: profiler is already active")
        else:
            await self.scheduler.call(self._executor.start_profile)
        speaker.say("api_router.py:44", "Profiler started.")
        return Response(status_code=200)

    async def stop_profile(self, _: Request) -> Response:
        """Write the traces; the engine is busy until that is done."""
        speaker = logs.api_server()
        speaker.say("api_router.py:50", "Stopping profiler...")
        profiler = self.settings.profiler
        if "failing-stop-profile" in self.faults or profiler is None:
            raise Refusal(500, "InternalServerError", "Internal Server Error")
        if "hanging-stop-profile" in self.faults:
            await self.scheduler.call(_never)
        traces.write_front_end(profiler, self.settings.version)
        await self.scheduler.call(self._flush)
        if "dies-in-flush" in self.faults:
            self.scheduler.die()
            raise EngineDeadError
        speaker.say("api_router.py:52", "Profiler stopped.")
        return Response(status_code=200)

    def _flush(self) -> None:
        profiler, seconds = self.settings.profiler, self.faults.value("slow-stop-profile")
        if profiler is not None and seconds:
            self._grow_for(profiler.folder / "rank0.growing.pt.trace.json.tmp", seconds)
        self._executor.stop_profile()

    @staticmethod
    def _grow_for(path: Any, seconds: float) -> None:
        """Write a file that grows for some time: what a person sees of a long flush."""
        end = time.monotonic() + seconds
        with path.open("wb") as growing:
            while time.monotonic() < end:
                growing.write(b"\0" * 65536)
                growing.flush()
                time.sleep(0.1)
        path.unlink()


async def _body(request: Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except ValueError:
        raise Refusal(400, "BadRequestError", "the body is not JSON") from None
    if not isinstance(body, dict):
        raise Refusal(400, "BadRequestError", "the body is not a JSON object")
    return body


def _never() -> None:
    while True:
        time.sleep(3600)


def _choice(text: str, reason: str | None) -> dict[str, Any]:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason, "stop_reason": None}


def _reason(produced: int, max_tokens: int) -> str:
    return "length" if produced >= max_tokens else "stop"


def _usage(prompt: int, produced: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "total_tokens": prompt + produced, "completion_tokens": produced}


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"


async def _refuse(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)  # noqa: S101 - registered for it
    return error.response


async def _engine_dead(_: Request, __: Exception) -> Response:
    return JSONResponse({"error": {"message": "EngineCore encountered an issue.", "code": 500}}, status_code=500)


async def _not_found(_: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    return JSONResponse({"detail": "Not Found" if status == 404 else "Method Not Allowed"}, status_code=status)
