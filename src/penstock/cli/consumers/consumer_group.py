"""The group `consumer`, and what its commands share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from penstock.cli.framework.command_run import CommandRun
from penstock.cli.framework.command_table import Argument, CommandGroup
from penstock.cli.streams.stream_group import stream_name
from penstock.protocol.api import ApiConsumerInfo, ConsumerInfoResponse, ConsumerListResponse, PagedRequest
from penstock.protocol.subjects import check_name

if TYPE_CHECKING:
    from penstock.client import JetStream

CONSUMER = CommandGroup("consumer", "Manage JetStream consumers.", aliases=("con", "obs", "c"))

CONSUMER_NAME = Argument(name="consumer", help="Consumer name", required=False)


async def consumer_names(run: CommandRun, js: JetStream) -> tuple[str, str]:
    """Names of the stream and consumer that the command names; what is missing, the user chooses.

    Raises UsageError without a terminal, MisuseError for names that can't be.
    """
    stream = await stream_name(run, js)
    given = run.values.text("consumer")
    if not given:
        given = run.choose("consumer", await (await js.stream(stream)).consumer_names())
    return stream, check_name(given, "consumer")


async def consumer_info_of(js: JetStream, stream: str, consumer: str) -> ConsumerInfoResponse:
    """Info of a consumer as the server says it. Raises ConsumerNotFoundError, StreamNotFoundError."""
    return await js.call(ConsumerInfoResponse, f"CONSUMER.INFO.{stream}.{consumer}")


async def all_consumers(js: JetStream, stream: str) -> AsyncIterator[ApiConsumerInfo]:
    """Infos of all consumers of a stream as the server says them."""
    offset = 0
    while True:
        page = await js.call(ConsumerListResponse, f"CONSUMER.LIST.{stream}", PagedRequest(offset=offset))
        for info in page.consumers:
            yield info
        offset += len(page.consumers)
        if not page.consumers or offset >= page.total:
            return
