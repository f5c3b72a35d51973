"""The streaming client against real servers: the paced one, and sockets that do what servers do wrong."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable

import pytest

from opsctl.payload.serving_benchmark import request_body
from opsctl.payload.sse import Exchange, StreamClient
from tests.payload.pacing import paced_server

TOKEN = b'data: {"choices":[{"index":0,"text":"a"}],"usage":null}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def complete(url: str, *, tokens: int = 8, count: int = 1, limit: float = 10.0) -> list[Exchange]:
    async def go() -> list[Exchange]:
        client = StreamClient(url)
        made = [Exchange(index) for index in range(count)]
        for exchange in made:
            await client.complete(request_body("paced", f"a b {exchange.index}", tokens), exchange, limit=limit)
        client.close()
        return made

    return asyncio.run(go())


def test_tokens_and_times() -> None:
    with paced_server(ttft=0.05, interval=0.01) as url:
        (exchange,) = complete(url, tokens=20)
    assert exchange.error == ""
    assert (exchange.chunks, exchange.output_tokens, exchange.prompt_tokens) == (20, 20, 4)
    # A token is never seen before it was sent; how late it is seen depends on this machine.
    assert 0.05 <= exchange.first - exchange.sent < 1.0
    assert exchange.last - exchange.first == pytest.approx(sum(exchange.gaps))
    assert exchange.last - exchange.first >= 19 * 0.01 - 0.05


@pytest.mark.parametrize("fault", ["two-a-chunk", "crlf-and-pieces", "close-each", "close-idle"])
def test_what_servers_may_do(fault: str) -> None:
    with paced_server("--fault", fault) as url:
        made = complete(url, tokens=9, count=4)
    assert [exchange.error for exchange in made] == [""] * 4
    assert {exchange.output_tokens for exchange in made} == {9}
    assert {exchange.chunks for exchange in made} == {5 if fault == "two-a-chunk" else 9}


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("refuse-every-third", "status 500: "),
        ("cut-stream", "the answer was cut short"),
        ("error-in-stream", "EngineCore died"),
        ("stall", "no end within 0.7 s"),
    ],
)
def test_a_failed_request_says_why_and_the_next_one_works(fault: str, said: str) -> None:
    with paced_server("--fault", fault) as url:
        made = complete(url, count=4, limit=0.7)
    assert [bool(exchange.error) for exchange in made] == [False, False, True, False]
    assert said in made[2].error


def test_without_usage_the_tokens_are_unknown() -> None:
    with paced_server("--fault", "no-usage") as url:
        (exchange,) = complete(url)
    assert "no usage" in exchange.error


def test_nobody_listens() -> None:
    (exchange,) = complete("http://127.0.0.1:9", limit=2.0)
    assert exchange.error.startswith("no connection to 127.0.0.1:9")
    assert exchange.ended >= exchange.sent > 0


Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


def answered(answer: Answer, *, limit: float = 5.0, count: int = 1) -> list[Exchange]:
    """Ask a server that answers each request by a function."""

    async def go() -> list[Exchange]:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    size = next(
                        int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
                    )
                    await reader.readexactly(size)
                    await answer(writer)
                    await writer.drain()
                    if writer.is_closing():
                        return
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        client = StreamClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        made = [Exchange(index) for index in range(count)]
        for exchange in made:
            await client.complete(b"{}", exchange, limit=limit)
        client.close()
        server.close()
        await server.wait_closed()
        return made

    return asyncio.run(go())


def test_content_length_instead_of_chunks() -> None:
    body = TOKEN + TOKEN + USAGE + DONE

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)

    made = answered(answer, count=2)
    assert [(each.error, each.chunks, each.output_tokens) for each in made] == [("", 2, 2)] * 2


def test_until_close() -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"\r\n" + TOKEN + TOKEN + USAGE + DONE)
        writer.close()

    (exchange,) = answered(answer)
    assert (exchange.error, exchange.chunks, exchange.output_tokens) == ("", 2, 2)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_any_cut_of_the_bytes_gives_the_same(size: int) -> None:
    body = b"".join(
        f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in (TOKEN, b": ping\n\n", TOKEN, USAGE, DONE)
    )
    whole = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + body + b"0\r\nX-Trailer: 1\r\n\r\n"

    async def answer(writer: asyncio.StreamWriter) -> None:
        for place in range(0, len(whole), size):
            writer.write(whole[place : place + size])
            await writer.drain()
            await asyncio.sleep(0)

    (exchange,) = answered(answer)
    assert (exchange.error, exchange.chunks, exchange.output_tokens) == ("", 2, 2)


def test_usage_beside_the_last_choice() -> None:
    last = b'data: {"choices":[{"text":""}],"usage":{"prompt_tokens":3,"completion_tokens":7}}\n\n'

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + f"Content-Length: {len(TOKEN + last)}\r\n\r\n".encode() + TOKEN + last)

    (exchange,) = answered(answer)
    assert (exchange.error, exchange.chunks, exchange.output_tokens) == ("", 2, 7)


def test_text_that_looks_like_json_does_not_fool_it() -> None:
    text = json.dumps('"choices":[] "usage":{ [DONE]')
    sly = f'data: {{"choices":[{{"text":{text}}}],"usage":null}}\n\n'.encode()

    async def answer(writer: asyncio.StreamWriter) -> None:
        body = sly + sly + USAGE
        writer.write(HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)

    (exchange,) = answered(answer)
    assert (exchange.error, exchange.chunks, exchange.output_tokens) == ("", 2, 2)


@pytest.mark.parametrize(
    "answer_bytes",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 two hundred\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"Content-Length: 30\r\n\r\ndata: {not json............\n\n",
        b"X" * 70000,
        HEAD + b"Content-Length: 0\r\n\r\n",
    ],
)
def test_nonsense_is_an_error_that_ends(answer_bytes: bytes) -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(answer_bytes)

    began = time.monotonic()
    (exchange,) = answered(answer, limit=2.0)
    assert exchange.error
    assert time.monotonic() - began < 5


def test_a_server_that_only_accepts_is_given_up() -> None:
    async def answer(_writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)

    (exchange,) = answered(answer, limit=0.3)
    assert exchange.error == "no end within 0.3 s"


def streamed(body: bytes, *, size: int = 1 << 16) -> Exchange:
    """Return what the client makes of a body that comes in pieces."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode())
        for place in range(0, len(body), size):
            writer.write(body[place : place + size])
            await writer.drain()
            await asyncio.sleep(0)

    return answered(answer)[0]


COMMENTED = (
    b": keep-alive\n"
    + TOKEN
    + b"event: message\nid: 7\nretry: 10\n"
    + TOKEN.replace(b"data: ", b"data:")
    + USAGE
    + DONE
)
SPREAD = b'data: {"choices":\ndata: [{"index":0,\ndata:  "text":"a"}]}\n\n'


@pytest.mark.parametrize("size", [1, 2, 5, 1 << 16])
@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("body", [COMMENTED, SPREAD + SPREAD + USAGE + DONE], ids=["comments", "several data lines"])
def test_events_as_the_standard_has_them(body: bytes, ending: bytes, size: int) -> None:
    exchange = streamed(body.replace(b"\n", ending), size=size)
    assert (exchange.error, exchange.chunks, exchange.output_tokens) == ("", 2, 2)


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_a_request_that_the_server_gave_up_is_failed(reason: str) -> None:
    last = TOKEN.replace(b'"text":"a"', f'"text":"","finish_reason":"{reason}"'.encode())
    exchange = streamed(TOKEN + last + USAGE + DONE)
    assert exchange.error == f"the server gave the request up: finish_reason {reason}"


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_a_request_that_ended_as_it_should_is_not(reason: str) -> None:
    last = TOKEN.replace(b'"text":"a"', f'"text":"","finish_reason":"{reason}"'.encode())
    exchange = streamed(TOKEN + last + USAGE + DONE)
    assert (exchange.error, exchange.finish) == ("", reason)


def test_text_about_an_abort_is_no_abort() -> None:
    text = json.dumps('{"finish_reason":"abort"}').encode()
    exchange = streamed(TOKEN.replace(b'"a"', text) + TOKEN + USAGE + DONE)
    assert (exchange.error, exchange.finish) == ("", "")


def test_an_answer_without_a_token_is_not_completed() -> None:
    empty = b'data: {"choices":[{"index":0,"text":"","finish_reason":"stop"}]}\n\n'
    exchange = streamed(empty + USAGE.replace(b'"completion_tokens":2', b'"completion_tokens":0') + DONE)
    assert exchange.error == "the answer held no token"
