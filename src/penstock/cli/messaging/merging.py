"""Messages of several subscriptions in one order: that in which they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from penstock.client import Msg, Subscription
from penstock.errors import ClientError

WAITING_MAX = 1024
"""Messages that wait to be printed; more stay in the subscriptions, which drop what does not fit."""


async def merged_messages(
    subscriptions: Sequence[Subscription], wait_s: float | None = None
) -> AsyncGenerator[Msg, None]:
    """Messages of subscriptions. wait_s: ends after so long without one; None: never.

    Raises what ended the last subscription, PermissionsError if the server refused it.
    """
    queue: asyncio.Queue[Msg | ClientError] = asyncio.Queue(WAITING_MAX)
    readers = [asyncio.create_task(_read(one, queue)) for one in subscriptions]
    left = len(readers)
    try:
        while True:
            try:
                async with asyncio.timeout(wait_s):
                    found = await queue.get()
            except TimeoutError:
                return
            if isinstance(found, Msg):
                yield found
                continue
            left -= 1
            if not left:
                raise found
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def _read(subscription: Subscription, queue: asyncio.Queue[Msg | ClientError]) -> None:
    """Put the messages of a subscription into a queue, and the error that ends it."""
    try:
        async for msg in subscription:
            await queue.put(msg)
    except ClientError as error:
        await queue.put(error)
