#!/usr/bin/env python3
"""Forward TCP connections from one port of 127.0.0.1 to another. SIGSTOP on it is a cut cable."""

from __future__ import annotations

import asyncio
import sys


async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry bytes one way until either side ends."""
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def serve(listen: int, target: int) -> None:
    """Accept connections for ever."""

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward_reader, onward_writer = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(pipe(reader, onward_writer), pipe(onward_reader, writer))

    server = await asyncio.start_server(accepted, "127.0.0.1", listen)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2])))
