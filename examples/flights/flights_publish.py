"""Publishes the flights to a stream, with thousands of publishes in flight, each acked."""

from __future__ import annotations

import time
from collections.abc import Iterable

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import penstock

STREAM = "FLIGHTS"
WINDOW = 4000
PROGRESS_STEP = 2000


async def publish(url: str, messages: Iterable[tuple[str, bytes]], total: int) -> float:
    """Create the stream, publish everything, and return the seconds until the last ack.

    Leaving the publisher waits for every ack, and raises when one did not come.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    async with penstock.connect(url) as client:
        js = client.jetstream()
        await js.create_stream(STREAM, subjects=["flights.>"])
        started = time.perf_counter()
        with Progress(*columns) as progress:
            task = progress.add_task("publishing flights", total=total)
            async with js.publisher(window=WINDOW) as publisher:
                for count, (subject, document) in enumerate(messages, 1):
                    await publisher.publish(subject, document)
                    if count % PROGRESS_STEP == 0:
                        progress.update(task, completed=count)
            progress.update(task, completed=total)
        return time.perf_counter() - started
