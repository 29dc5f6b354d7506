"""The group `stream`, and what its commands share: arguments, the choice of a stream, requests by wire
structs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from penstock.cli.framework.command_run import CommandRun
from penstock.cli.framework.command_table import Argument, CommandGroup, Option
from penstock.protocol.api import (
    ApiStreamInfo,
    StreamInfoRequest,
    StreamInfoResponse,
    StreamListResponse,
    StreamNamesRequest,
)
from penstock.protocol.subjects import check_name

if TYPE_CHECKING:
    from penstock.client import JetStream

STREAM = CommandGroup("stream", "Manage JetStream streams.", aliases=("str", "st", "ms", "s"))

STREAM_NAME = Argument(name="stream", help="Stream name", required=False)
FORCE = Option(names=("--force", "-f"), convert=bool, help="Do it without asking")
NO_SELECT = Option(
    names=("--no-select",), convert=bool, help="Don't offer a choice where the stream is missing"
)
ALL_STREAMS = Option(names=("--all", "-a"), convert=bool, help="Include streams of buckets (KV_ and OBJ_)")

HIDDEN_PREFIXES = ("KV_", "OBJ_", "MQTT_", "$MQTT_")


async def stream_name(run: CommandRun, js: JetStream) -> str:
    """The stream that the command names; without one, the user's choice.

    Raises UsageError without a terminal, MisuseError for a name that can't be one.
    """
    given = run.values.text("stream")
    return check_name(given or run.choose("stream", await js.stream_names()), "stream")


async def stream_info_of(
    js: JetStream, name: str, *, subjects_filter: str = "", deleted_details: bool = False
) -> StreamInfoResponse:
    """Info of a stream as the server says it, with all pages of subjects. Raises StreamNotFoundError."""
    subjects: dict[str, int] = {}
    while True:
        request = StreamInfoRequest(
            offset=len(subjects), subjects_filter=subjects_filter, deleted_details=deleted_details
        )
        plain = not subjects_filter and not deleted_details
        page = await js.call(StreamInfoResponse, f"STREAM.INFO.{name}", None if plain else request)
        subjects.update(page.state.subjects)
        if not page.state.subjects or len(subjects) >= page.total:
            break
    page.state.subjects = subjects
    return page


async def all_streams(js: JetStream, subject: str = "") -> AsyncIterator[ApiStreamInfo]:
    """Infos of all streams as the server says them. subject: only streams whose subjects overlap it."""
    offset = 0
    while True:
        page = await js.call(
            StreamListResponse, "STREAM.LIST", StreamNamesRequest(offset=offset, subject=subject)
        )
        for info in page.streams:
            yield info
        offset += len(page.streams)
        if not page.streams or offset >= page.total:
            return
