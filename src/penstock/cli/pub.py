"""`penstock pub SUBJECT [BODY]`: publishes a message, or each line of an input, also as a batch (ADR-50).

    penstock pub orders.new '{"id": 1}'
    penstock pub sensors.a --input readings.jsonl --batch fast
    psql -Atc 'select * from users' | penstock pub users --batch atomic

Exit status: 0 published (with a batch: stored), 1 rejected or not acked, 2 wrong usage or unreadable input.
The input is read in a thread, so that a batch is kept alive while the input is idle.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from penstock.cli import run_app
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.client import Client
    from penstock.protocol.api import PubAck

EXIT_DONE, EXIT_REFUSED, EXIT_COULD_NOT = 0, 1, 2

READ_BYTES = 256 * 1024

app = typer.Typer(add_completion=False)


class Batch(StrEnum):
    """Batch mode."""

    NONE = "none"
    ATOMIC = "atomic"
    FAST = "fast"


class MissingMessages(StrEnum):
    """Effect of a lost or rejected message on a fast batch."""

    FAIL = "fail"
    OK = "ok"


def pub(words: list[str]) -> int:
    """Run `penstock pub ...` and return the exit status."""
    return run_app(app, words, "penstock pub", misused=EXIT_COULD_NOT)


@app.command(help="Publish a message, or each line of an input, also as one atomic or fast batch.")
def _pub(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT")],
    body: Annotated[
        str | None, typer.Argument(metavar="[BODY]", help="The message; each line of the input without it.")
    ] = None,
    server: Annotated[
        str, typer.Option("--server", "-s", envvar="NATS_URL", help="URL of a server.")
    ] = "nats://127.0.0.1:4222",
    credentials: Annotated[
        Path | None, typer.Option("--creds", envvar="NATS_CREDS", help="A credentials file.")
    ] = None,
    input_file: Annotated[
        Path | None, typer.Option("--input", "-i", help="The input, a message a line; stdin without it.")
    ] = None,
    count: Annotated[int, typer.Option("--count", min=1, help="Publish BODY so many times.")] = 1,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME:VALUE", help="Of every message.")
    ] = None,
    batch: Annotated[
        Batch, typer.Option("--batch", help="Store all or nothing (atomic), or as fast as it goes (fast).")
    ] = Batch.NONE,
    gap: Annotated[
        MissingMessages, typer.Option("--gap", help="fast: does a lost or refused message end the batch?")
    ] = MissingMessages.FAIL,
    flow: Annotated[int, typer.Option("--flow", min=1, max=65535, help="fast: most messages an ack.")] = 1000,
    progress: Annotated[
        bool | None, typer.Option("--progress/--no-progress", help="Show it (default: on a terminal).")
    ] = None,
) -> int:
    headers = {}
    for one in header or []:
        name, colon, value = one.partition(":")
        if not colon:
            sys.stderr.write(f"penstock pub: a header is NAME:VALUE, not {one!r}\n")
            return EXIT_COULD_NOT
        headers[name.strip()] = value.strip()
    if body is not None and input_file is not None:
        sys.stderr.write("penstock pub: a message comes from BODY or from --input, not from both\n")
        return EXIT_COULD_NOT
    show_progress = progress if progress is not None else sys.stderr.isatty() and (body is None or count > 1)
    try:
        with _source(input_file, body) as (source, size):
            job = _Job(subject, headers, source, body, count, size if body is None else None, show_progress)
            asyncio.run(job.run(server, credentials, batch, gap, flow))
    except OSError as error:
        sys.stderr.write(f"penstock pub: {error}\n")
        return EXIT_COULD_NOT
    except PenstockError as error:
        sys.stderr.write(f"penstock pub: {error}\n")
        return EXIT_REFUSED
    return EXIT_DONE


@contextmanager
def _source(path: Path | None, body: str | None) -> Iterator[tuple[BinaryIO, int | None]]:
    """The input, and its size when it is a file."""
    if path is None or body is not None:
        yield sys.stdin.buffer, None
        return
    with path.open("rb") as file:
        yield file, path.stat().st_size or None


class _Job:
    """One run of the command. size: bytes of the input, None if unknown."""

    def __init__(
        self,
        subject: str,
        headers: dict[str, str],
        source: BinaryIO,
        body: str | None,
        count: int,
        size: int | None,
        show_progress: bool,
    ) -> None:
        self._subject = subject
        self._headers = headers
        self._source = source
        self._body = body
        self._count = count
        self._size = size
        self._show_progress = show_progress
        self._advance: Callable[[int, int], None] = lambda messages, size: None
        self.messages = 0

    async def run(
        self, server: str, credentials: Path | None, batch: Batch, gap: MissingMessages, flow: int
    ) -> None:
        """Connect, publish and print the result."""
        from penstock import client

        credentials_file = str(credentials) if credentials is not None else None
        async with client.connect(server, name="penstock pub", credentials=credentials_file) as nc:
            with self._progress():
                ack: PubAck | None = None
                if batch is Batch.ATOMIC:
                    ack = await self._atomic(nc)
                elif batch is Batch.FAST:
                    ack = await self._fast(nc, gap, flow)
                else:
                    await self._plain(nc)
        text = f"published {self.messages:,} message{'s' * (self.messages != 1)} to {self._subject}"
        if ack is not None:
            text += f": stream {ack.stream}, last sequence {ack.seq:,}, batch {ack.batch} of {ack.count:,}"
        sys.stdout.write(text + "\n")

    async def _plain(self, nc: Client) -> None:
        async for payloads in self._payloads():
            for payload in payloads:
                await nc.publish(self._subject, payload, headers=self._headers or None)
        await nc.flush()

    async def _atomic(self, nc: Client) -> PubAck | None:
        async with nc.jetstream().atomic_batch() as batch:
            await self._add_all(batch.add_many, batch.add)
            return await batch.commit_eob() if self.messages else None

    async def _fast(self, nc: Client, gap: MissingMessages, flow: int) -> PubAck | None:
        def lost(last_seq: int, seq: int) -> None:
            sys.stderr.write(f"penstock pub: messages behind {last_seq:,} and before {seq:,} got lost\n")

        def refused(seq: int, error: Exception) -> None:
            sys.stderr.write(f"penstock pub: message {seq:,} was refused: {error}\n")

        batch = nc.jetstream().fast_ingest(gap=gap.value, flow=flow, on_gap=lost, on_error=refused)
        async with batch:
            await self._add_all(batch.add_many, batch.add)
            return await batch.commit_eob() if self.messages else None

    async def _add_all(
        self, add_many: Callable[..., Awaitable[object]], add: Callable[..., Awaitable[object]]
    ) -> None:
        async for payloads in self._payloads():
            if self._headers:
                for payload in payloads:
                    await add(self._subject, payload, headers=self._headers)
            else:
                await add_many(payloads, self._subject)

    async def _payloads(self) -> AsyncIterator[list[bytes]]:
        """Yield the messages in groups, as they are read."""
        if self._body is not None:
            payload = self._body.encode("utf-8", "surrogateescape")
            for done in range(0, self._count, 1000):
                yield self._count_messages([payload] * min(1000, self._count - done), 0)
            return
        rest = b""
        while data := await asyncio.to_thread(self._source.read1, READ_BYTES):  # type: ignore[attr-defined]
            *lines, rest = (rest + data).split(b"\n")
            if lines:
                yield self._count_messages(lines, len(data))
        if rest:
            yield self._count_messages([rest], 0)

    def _count_messages(self, payloads: list[bytes], size: int) -> list[bytes]:
        self.messages += len(payloads)
        self._advance(len(payloads), size)
        return payloads

    @contextmanager
    def _progress(self) -> Iterator[None]:
        if not self._show_progress:
            yield
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = TextColumn("{task.fields[messages]:,} messages"), BarColumn(), TimeElapsedColumn()
        with Progress(*columns, console=Console(stderr=True)) as shown:
            total = self._size if self._body is None else self._count
            task = shown.add_task(self._subject, total=total, messages=0)

            def advance(messages: int, size: int) -> None:
                shown.update(task, advance=size if self._body is None else messages, messages=self.messages)

            self._advance = advance
            yield
