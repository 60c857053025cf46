"""A small HTTP server that streams chat completions as scripted: delays, failures and usage are the test's choice."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Script:
    """One answer: seconds before its first token and between tokens, and how it ends."""

    tokens: tuple[str, ...] = ("one", " two", " three")
    first_after_s: float = 0.0
    gap_s: float = 0.0
    usage: dict[str, Any] | None = None
    status: int = 200
    cut: bool = False
    extra_lines: tuple[bytes, ...] = ()
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class SseServer:
    """`answer` chooses the script by the request's body. Keeps what was asked and how many were open at once."""

    answer: Callable[[dict[str, Any]], Script] = lambda body: Script()
    port: int = 0
    asked: list[tuple[dict[str, str], dict[str, Any]]] = field(default_factory=list)
    open_now: int = 0
    open_most: int = 0
    barrier: asyncio.Barrier | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head.split("\r\n")[1:] if line)}
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        self.asked.append((headers, body))
        self.open_now += 1
        self.open_most = max(self.open_most, self.open_now)
        try:
            if self.barrier is not None:
                await self.barrier.wait()
            script = self.answer(body)
            return await self._play(script, _chunked(writer, script))
        finally:
            self.open_now -= 1

    async def _play(self, script: Script, write: Callable[[bytes], Awaitable[None]]) -> bool:
        if script.status != 200:
            await write(json.dumps({"error": {"message": f"status {script.status}"}}).encode())
            await write(b"")
            return True
        await write(_event({"choices": [{"delta": {"role": "assistant", "content": ""}}]}))
        for place, token in enumerate(script.tokens):
            await asyncio.sleep(script.gap_s if place else script.first_after_s)
            await write(_event({"choices": [{"delta": {"content": token}}]}))
        for line in script.extra_lines:
            await write(line)
        if script.cut:
            return False
        if script.usage is not None:
            await write(_event({"choices": [], "usage": script.usage}))
        await write(b"data: [DONE]\n\n")
        await write(b"")
        return True


def _chunked(writer: asyncio.StreamWriter, script: Script) -> Callable[[bytes], Awaitable[None]]:
    more = "".join(f"{name}: {value}\r\n" for name, value in script.headers.items())
    writer.write(f"HTTP/1.1 {script.status} X\r\ntransfer-encoding: chunked\r\n{more}\r\n".encode())

    async def write(data: bytes) -> None:
        writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await writer.drain()

    return write


def _event(message: Any) -> bytes:
    return b"data: " + json.dumps(message).encode() + b"\n\n"


@asynccontextmanager
async def sse_server(answer: Callable[[dict[str, Any]], Script] = lambda body: Script()) -> AsyncIterator[SseServer]:
    state = SseServer(answer)
    server = await asyncio.start_server(state.serve, "127.0.0.1", 0)
    state.port = server.sockets[0].getsockname()[1]
    async with server:
        yield state
