"""A line of limited speed to a server: a TCP proxy that delays requests and limits bandwidth.

All connections share the bandwidth in turns of `_CHUNK` bytes, as on a real line. Each request
reaches the server `latency` seconds late. The proxy runs in a process of its own; it copies
several hundred megabytes per second, so a slower line is limited by its bandwidth alone.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections import deque
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

_CHUNK = 32 << 10  # bytes
_BURST = 0.01  # seconds of the line that are made up for after a pause: timers are late
_MOST = 1 << 20  # bytes that wait for their turn, for each connection
_METHODS = (b"GET ", b"HEAD ", b"PUT ", b"POST ", b"DELETE ")


class Line:
    """A line to the server at `target`; clients use `address` instead.

    `bandwidth` is in bytes per second, from the server to the clients; None means no limit.
    """

    def __init__(
        self, target: str, *, latency: float = 0.0, bandwidth: float | None = None
    ) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._counts = spawn.Array("q", 2, lock=False)  # requests, and bytes to clients
        receiver, sender = spawn.Pipe(duplex=False)
        server = urlsplit(target)
        arguments = (server.hostname, server.port, latency, bandwidth, self._counts, sender)
        self._process = spawn.Process(target=_run, args=arguments, daemon=True)
        self._process.start()
        sender.close()
        self.address = f"http://127.0.0.1:{receiver.recv()}"

    @property
    def requests(self) -> int:
        """How many requests came so far."""
        return int(self._counts[0])

    @property
    def bytes(self) -> int:
        """How many bytes went to clients so far, with the headers of answers."""
        return int(self._counts[1])

    def close(self) -> None:
        self._process.kill()
        self._process.join()


def _run(*arguments: Any) -> None:
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(*arguments))


async def _serve(
    host: str, port: int, latency: float, bandwidth: float | None, counts: Any, sender: Any
) -> None:
    loop = asyncio.get_running_loop()
    turns = _Turns(bandwidth, counts)

    def accept() -> _Client:
        return _Client((host, port), latency, turns)

    server = await loop.create_server(accept, "127.0.0.1", 0, backlog=512)
    sender.send(server.sockets[0].getsockname()[1])
    sender.close()
    await server.serve_forever()


class _Turns:
    """Connections with data for their clients, which send a chunk each in turn."""

    def __init__(self, bandwidth: float | None, counts: Any) -> None:
        self.counts = counts
        self._pace = 0.0 if bandwidth is None else 1 / bandwidth
        self._ready: deque[_Client] = deque()
        self._free = 0.0  # when the line is free again
        self._is_waiting = False

    def add(self, client: _Client) -> None:
        self._ready.append(client)
        if not self._is_waiting:
            self._send()

    def _send(self) -> None:
        self._is_waiting = False
        now = time.monotonic()
        self._free = max(self._free, now - _BURST)
        while self._ready and self._free <= now:
            client = self._ready.popleft()
            chunk = client.take()
            self.counts[1] += len(chunk)
            self._free += len(chunk) * self._pace
            if client.has_data:
                self._ready.append(client)
        if self._ready:
            self._is_waiting = True
            delay = max(self._free - now, 0.0005)
            asyncio.get_running_loop().call_later(delay, self._send)


class _Client(asyncio.Protocol):
    """The connection of a client, and the one to the server for it."""

    def __init__(self, server: tuple[str, int], latency: float, turns: _Turns) -> None:
        self._address, self._latency, self._turns = server, latency, turns
        self._waiting: deque[memoryview] = deque()  # data for the client
        self._size = 0
        self._server: asyncio.Transport | None = None
        self._early: list[bytes] = []  # requests before the server is connected
        self._is_ended = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._task = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: _Server(self), *self._address)
        except OSError:
            self._transport.close()

    def reach(self, server: asyncio.Transport) -> None:
        self._server = server
        for data in self._early:
            server.write(data)

    def data_received(self, data: bytes) -> None:
        if data.startswith(_METHODS):
            self._turns.counts[0] += 1
        asyncio.get_running_loop().call_later(self._latency, self._pass_on, data)

    def _pass_on(self, data: bytes) -> None:
        if self._server is None:
            self._early.append(data)
        else:
            self._server.write(data)

    def connection_lost(self, _: Exception | None) -> None:
        if self._server is not None:
            self._server.abort()
        self._waiting.clear()
        self._size = 0

    def give(self, data: bytes) -> None:
        """Data from the server."""
        if self._transport.is_closing():
            return
        is_new = not self._waiting
        self._waiting.append(memoryview(data))
        self._size += len(data)
        if self._size > _MOST and self._server is not None:
            self._server.pause_reading()
        if is_new:
            self._turns.add(self)

    def take(self) -> memoryview:
        """Send a chunk to the client; returns it."""
        if not self._waiting:
            return memoryview(b"")
        data = self._waiting.popleft()
        chunk = data[:_CHUNK]
        if len(data) > _CHUNK:
            self._waiting.appendleft(data[_CHUNK:])
        self._size -= len(chunk)
        self._transport.write(chunk)
        if self._server is not None and self._size <= _MOST // 2:
            self._server.resume_reading()
        if self._is_ended and not self._waiting:
            self._transport.close()
        return chunk

    @property
    def has_data(self) -> bool:
        return bool(self._waiting)

    def end(self) -> None:
        """The server has closed its connection."""
        self._is_ended = True
        if not self._waiting:
            self._transport.close()


class _Server(asyncio.Protocol):
    """The connection to the server."""

    def __init__(self, client: _Client) -> None:
        self._client = client

    def connection_made(self, transport: Any) -> None:
        self._client.reach(transport)

    def data_received(self, data: bytes) -> None:
        self._client.give(data)

    def connection_lost(self, _: Exception | None) -> None:
        self._client.end()
