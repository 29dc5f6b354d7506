"""`penstock stream backup|restore`: a stream with its consumers in a directory, and back.

The files are those of the official command line, which reads and writes them too: `backup.json` has the
configuration and the state, `stream.arc.s2` the archive of the server (`stream.tar.s2` from servers
before 2.15). The server sends the archive in chunks, and waits for an answer to each when its window is
full.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.cli.framework.command_run import CommandFailed, CommandRun
from penstock.cli.framework.command_table import Argument, Option
from penstock.cli.framework.value_kinds import path, size
from penstock.cli.framework.value_texts import number_text, size_text
from penstock.cli.streams.stream_group import STREAM, STREAM_NAME, stream_info_of, stream_name
from penstock.cli.streams.stream_settings import SETTING_OPTIONS, change_config, checked_config
from penstock.client import JetStream
from penstock.client.config import to_wire
from penstock.errors import RequestTimeoutError
from penstock.protocol.api import (
    ApiStreamConfig,
    StreamCreateResponse,
    StreamInfoResponse,
    StreamRestoreRequest,
    StreamRestoreResponse,
    StreamSnapshotRequest,
    StreamSnapshotResponse,
    StreamState,
    decode_response,
)
from penstock.protocol.api.streams import StreamConfigRequest

if TYPE_CHECKING:
    from typing import BinaryIO

    from penstock.cli.framework.cli_output import Progress
    from penstock.client import Client

DESCRIPTION = "backup.json"
ARCHIVE, OLD_ARCHIVE = "stream.arc.s2", "stream.tar.s2"
CHUNK_BYTES = 128 * 1024
END_OF_ARCHIVE = 204
CHUNK_TIMEOUT_S = 30.0

PROGRESS = Option(
    names=("--progress",), convert=bool, negatable=True, help="Show progress (default: at a terminal)"
)


class BackupDescription(msgspec.Struct):
    """`backup.json`."""

    config: ApiStreamConfig
    state: StreamState


BACKUP_OPTIONS = (
    PROGRESS,
    Option(names=("--check",), convert=bool, help="Let the server check the messages first"),
    Option(names=("--consumers",), convert=bool, negatable=True, help="Include consumers (default)"),
    Option(names=("--chunk-size",), convert=size, help="Bytes of a chunk (default: 128KB)"),
    Option(names=("--window-size",), convert=size, help="Bytes that may be in flight"),
)


class WrittenBackup(msgspec.Struct):
    """A backup that was written. bytes: size of its archive."""

    stream: str
    target: str
    bytes: int
    state: StreamState


@STREAM.command(
    "backup",
    "Write a stream, with its consumers, to a directory.",
    arguments=(STREAM_NAME, Argument(name="target", help="Directory to write to", convert=path)),
    options=BACKUP_OPTIONS,
    examples=("stream backup ORDERS /var/backups/orders",),
)
async def backup(run: CommandRun) -> None:
    target: Path = run.values.value("target")
    _make_folder(target)
    async with run.connect() as client:
        name = await stream_name(run, run.jetstream_of(client))
        written = await write_archive(run, client, name, target)
    if run.output.as_json:
        run.output.json(written)
        return
    messages, total = number_text(written.state.messages), size_text(written.state.bytes)
    run.output.line(
        f"Wrote {size_text(written.bytes)} of stream {name} to {target} ({messages} messages, {total})"
    )


async def write_archive(run: CommandRun, client: Client, name: str, target: Path) -> WrittenBackup:
    """Write a stream to a directory, as BACKUP_OPTIONS of the command say.

    Raises CommandFailed if the directory has a backup or the server breaks off, and what requests raise.
    """
    values, js = run.values, run.jetstream_of(client)
    _make_folder(target)
    inbox = client.new_inbox()
    async with await client.subscribe(inbox) as chunks:
        request = StreamSnapshotRequest(
            deliver_subject=inbox,
            no_consumers=not values.flag("consumers", default=True),
            chunk_size=values.number("chunk-size", CHUNK_BYTES),
            window_size=values.number("window-size"),
            jsck=values.flag("check"),
        )
        answer = await js.call(StreamSnapshotResponse, f"STREAM.SNAPSHOT.{name}", request)
        archive = target / (ARCHIVE if _has_archives(client.server_info.version) else OLD_ARCHIVE)
        with (
            run.output.progress(
                f"backup of {name}", answer.state.bytes, shown=values.value("progress")
            ) as bar,
            archive.open("wb") as file,
        ):
            received = 0
            while True:
                chunk = await chunks.next(timeout=CHUNK_TIMEOUT_S)
                if not chunk.data:
                    _check_end(chunk.status, chunk.headers.get("Description") or "", received)
                    break
                file.write(chunk.data)
                received += len(chunk.data)
                bar.advance(len(chunk.data))
                if chunk.reply:
                    await chunk.respond(b"")
    description = BackupDescription(answer.config, answer.state)
    text = msgspec.json.format(msgspec.json.encode(description), indent=2)
    (target / DESCRIPTION).write_bytes(text)  # last: without it, a directory is no backup
    return WrittenBackup(name, str(target), received, answer.state)


def _make_folder(target: Path) -> None:
    """Raises CommandFailed if a backup is there, OSError."""
    target.mkdir(parents=True, exist_ok=True)
    if (target / DESCRIPTION).exists():
        raise CommandFailed(f"{target} has a backup already; name another directory, or remove it")


def _has_archives(version: str) -> bool:
    """Whether a server of this version sends archives of entries, and not tar files."""
    numbers = version.partition("-")[0].split(".")
    try:
        return (int(numbers[0]), int(numbers[1])) >= (2, 15)
    except (ValueError, IndexError):
        return True


def _check_end(status: int | None, description: str, received: int) -> None:
    """Raise CommandFailed unless an empty chunk says that the archive is complete."""
    # Servers before 2.10 end with an empty message without a status.
    if status not in (None, END_OF_ARCHIVE):
        raise CommandFailed(
            f"the server ended the backup after {size_text(received)}: {status} {description}"
        )


@STREAM.command(
    "restore",
    "Create a stream from a backup.",
    arguments=(Argument(name="file", help="Directory of the backup", convert=path),),
    options=(
        PROGRESS,
        Option(
            names=("--name",), metavar="STREAM", help="Restore under another name; needs other --subjects"
        ),
        *(
            one
            for one in SETTING_OPTIONS
            if one.key in ("subjects", "replicas", "cluster", "tag", "description")
        ),
    ),
    examples=("stream restore /var/backups/orders", "stream restore /var/backups/orders --replicas 3"),
)
async def restore(run: CommandRun) -> None:
    async with run.connect() as client:
        info = await restore_archive(run, client, run.values.value("file"), name=run.values.text("name"))
    if run.output.as_json:
        run.output.json(info)
        return
    run.output.line(
        f"Restored stream {info.config.name} with {number_text(info.state.messages)} messages "
        f"({size_text(info.state.bytes)}) and {info.state.consumer_count} consumers"
    )


async def restore_archive(
    run: CommandRun, client: Client, source: Path, *, name: str = ""
) -> StreamInfoResponse:
    """Create a stream from a backup, with the settings that the command changes. name: another name.

    Raises CommandFailed if the directory is no backup, and what requests raise.
    """
    description = read_description(source)
    archive = next((source / one for one in (ARCHIVE, OLD_ARCHIVE) if (source / one).is_file()), None)
    if archive is None:
        raise CommandFailed(f"{source} has neither {ARCHIVE} nor {OLD_ARCHIVE}, so it is no complete backup")
    wanted = {key: getattr(description.config, key) for key in ApiStreamConfig.__struct_fields__}
    wanted["name"] = name or description.config.name
    options = {"subjects", "replicas", "cluster", "tag", "description"}
    config = to_wire(checked_config(change_config(wanted, run.values.only(options))))
    js = run.jetstream_of(client)
    request = StreamRestoreRequest(
        config=msgspec.convert(msgspec.to_builtins(config), StreamConfigRequest), state=description.state
    )
    answer = await js.call(StreamRestoreResponse, f"STREAM.RESTORE.{config.name}", request)
    total = archive.stat().st_size
    with (
        archive.open("rb") as file,
        run.output.progress(f"restore of {config.name}", total, shown=run.values.value("progress")) as bar,
    ):
        created = await _send(client, js, answer.deliver_subject, file, bar)
    return await stream_info_of(js, created.config.name)


async def _send(
    client: Client, js: JetStream, subject: str, file: BinaryIO, bar: Progress
) -> StreamCreateResponse:
    """Send an archive chunk by chunk; the server answers each. Returns the answer to the last."""
    while data := file.read(CHUNK_BYTES):
        answer = await client.request(subject, data, timeout=max(js.timeout, CHUNK_TIMEOUT_S))
        if answer.data:  # only errors have a body
            decode_response(StreamCreateResponse, answer.data, request=subject)
        bar.advance(len(data))
    try:
        answer = await client.request(subject, b"", timeout=max(js.timeout, 10 * CHUNK_TIMEOUT_S))
    except RequestTimeoutError as error:
        raise CommandFailed(f"the server has not said that the stream is restored: {error}") from error
    return decode_response(StreamCreateResponse, answer.data, request=subject)


def read_description(folder: Path) -> BackupDescription:
    """Read `backup.json` of a backup. Raises CommandFailed if the directory is no backup."""
    file = folder / DESCRIPTION
    try:
        return msgspec.json.decode(file.read_bytes(), type=BackupDescription)
    except FileNotFoundError:
        raise CommandFailed(f"{folder} is no backup: it has no {DESCRIPTION}") from None
    except (OSError, msgspec.DecodeError) as error:
        raise CommandFailed(f"{file} can not be read: {error}") from None
