"""What the web processes cost: enqueue over HTTP, a frame of a stream for each viewer, and the
memory of a viewer that waits. Through daphne and through uvicorn.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from . import fill
from .measure import cpu_of
from .results import Result, figure, run_alone
from .server import Server, wait_until

CLIENTS = 16
REQUESTS = 1_000
VIEWERS = 500, 2_000
STREAMS = 10
FRAME_SECONDS = 5.0
TOKEN = "b" * 40


@dataclass(slots=True)
class Web:
    """A web server under test."""

    server: Server
    pid: int
    port: int

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    @property
    def megabytes(self) -> float:
        return psutil.Process(self.pid).memory_info().rss / 1e6


def run(server: Server, *, rounds: int = 3, scale: float = 1.0) -> list[Result]:
    server.create_ours()
    with server.connect("agentruns") as connection:
        connection.execute(
            "INSERT INTO authtoken_token (key, user_id, created) VALUES (%s, 1, now())", [TOKEN]
        )
    results = []
    for name in ("daphne", "uvicorn"):
        for pool in ("", "1"):
            with serving(server, name, BENCH_POOL=pool) as web:
                title = f"{name}, {'a pool' if pool else 'a connection for each request'}"
                results.append(asyncio.run(_enqueue(web, title, int(REQUESTS * scale))))
        for viewers in VIEWERS:
            with serving(server, name) as web:
                results.append(_stream(web, name, max(50, int(viewers * scale))))
        print(table_of(results[-4:]), flush=True)
    return results


def table_of(results: list[Result]) -> str:
    return "\n".join(f"{r.what}: {r.measured}" for r in results)


@contextmanager
def serving(server: Server, name: str, **environment: str) -> Iterator[Web]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = {
        "daphne": ["-b", "127.0.0.1", "-p", port, "-v", "0", "project.asgi:application"],
        "uvicorn": ["--port", port, "--log-level", "warning", "project.asgi:application"],
    }[name]
    with server.running(name, *arguments, **environment) as pid:
        wait_until(lambda: _answers(port))
        yield Web(server, pid, port)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def _enqueue(web: Web, name: str, count: int) -> Result:
    body = json.dumps({"content": "Hello", "agent": "noop"}).encode()
    head = (
        f"POST /api/runs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Token {TOKEN}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    left = iter(range(count))

    async def client(requests: Iterator[int]) -> None:
        reader, writer = await web.connect()
        for _ in requests:
            writer.write(head + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert b" 202 " in answer[:20], answer
            lower = answer.lower()
            size = int(lower.split(b"content-length:")[1].split(b"\r\n")[0])
            await reader.readexactly(size)
        writer.close()

    await client(iter(range(20)))
    began, cpu, pg = time.monotonic(), cpu_of(web.pid), web.server.cpu()
    await asyncio.gather(*(client(left) for _ in range(CLIENTS)))
    took = time.monotonic() - began
    client_us = (cpu_of(web.pid) - cpu) / count * 1e6
    pg_us = (web.server.cpu() - pg) / count * 1e6
    return figure(
        "",
        f"enqueue by HTTP, {name}, {CLIENTS} clients",
        f"{count / took:.0f}/s, web {client_us:.0f} + PG {pg_us:.0f} µs a request",
    )


def _stream(web: Web, name: str, viewers: int) -> Result:
    server = web.server
    with server.connect("agentruns") as connection:
        fill.clear(connection)
        fill.fill(connection, STREAMS, agent="streamer")
        ids = [row[0] for row in connection.execute("SELECT id FROM agentruns_agentrun")]
        report = str(server.folder / f"report-{time.monotonic_ns()}")
        empty = web.megabytes
        frames, seconds, cpu, full = asyncio.run(
            _watch(
                web,
                [str(ids[number % STREAMS]) for number in range(viewers)],
                lambda: server.running(
                    "benchmarks.stream",
                    "worker",
                    BENCH_RATE="50",
                    BENCH_REPORT=report,
                    AGENTRUNS_CONCURRENCY=str(STREAMS),
                ),
            )
        )
    return figure(
        "",
        f"server-sent events, {name}, {viewers} viewers",
        f"{frames / seconds:.0f} frames/s, {cpu / max(1, frames) * 1e6:.0f} µs of web CPU a frame; "
        f"a viewer that waits holds {(full - empty) / viewers * 1000:.0f} kB",
    )


async def _watch(
    web: Web, run_ids: list[str], worker: Callable[[], object]
) -> tuple[int, float, float, float]:
    """Open a stream for each id, measure the memory, then let the runs speak: frames, seconds,
    CPU seconds, megabytes.
    """
    counted = 0
    tasks: list[asyncio.Task[None]] = []

    async def follow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal counted
        while chunk := await reader.read(65536):
            counted += chunk.count(b"data: ")
        writer.close()  # held until here: a writer that is forgotten closes its connection

    async def open_one(run_id: str) -> None:
        reader, writer = await web.connect()
        writer.write(
            f"GET /api/runs/{run_id}/events HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Token {TOKEN}\r\nAccept: text/event-stream\r\n\r\n".encode()
        )
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
        assert b" 200 " in head[:20], head
        tasks.append(asyncio.create_task(follow(reader, writer)))

    opening: list[Awaitable[None]] = []
    for run_id in run_ids:
        opening.append(open_one(run_id))
        if len(opening) == 20:
            await asyncio.gather(*opening)
            opening = []
    await asyncio.gather(*opening)
    await asyncio.sleep(1)
    full = web.megabytes
    with worker():  # type: ignore[attr-defined]
        deadline = time.monotonic() + 60
        while counted < 5 * len(run_ids):
            assert time.monotonic() < deadline, "no frames came"
            await asyncio.sleep(0.1)
        began, cpu, first = time.monotonic(), cpu_of(web.pid), counted
        await asyncio.sleep(FRAME_SECONDS)
        frames, seconds = counted - first, time.monotonic() - began
        used = cpu_of(web.pid) - cpu
    for task in tasks:
        task.cancel()
    return frames, seconds, used, full


if __name__ == "__main__":
    run_alone("web", run)
