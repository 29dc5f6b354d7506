"""`penstock object`: object stores, for values of any size."""

from __future__ import annotations

import base64
import os
import sys
import time
from pathlib import Path
from typing import Any

from penstock.cli.bucket_options import (
    COUNT,
    FORCE,
    NAMES,
    PROGRESS,
    SETTINGS,
    STORAGE,
    bucket,
    bucket_row,
    cluster_rows,
    settings_of,
    storage_of,
)
from penstock.cli.framework.cli_output import Progress
from penstock.cli.framework.command_run import CommandFailed, CommandRun
from penstock.cli.framework.command_table import Argument, CommandGroup, Option
from penstock.cli.framework.value_kinds import count, existing_file, header, path
from penstock.cli.framework.value_texts import (
    duration_text,
    number_text,
    size_limit_text,
    size_text,
    time_text,
)
from penstock.client import ObjectInfo, ObjectStore, ObjectStoreStatus
from penstock.errors import MisuseError, ObjectNotFoundError

OBJECT = CommandGroup("object", "Work with object stores.", aliases=("obj",))


def _object_name(*, required: bool) -> Argument:
    return Argument(name="file", help="The name of the object", required=required)


def info_json(info: ObjectInfo) -> dict[str, Any]:
    """An object for `--json`, with the field names of ADR-20."""
    return {
        "name": info.name,
        "bucket": info.bucket,
        "description": info.description,
        "nuid": info.nuid,
        "size": info.size,
        "chunks": info.chunks,
        "digest": info.digest,
        "mtime": info.modified.isoformat(),
        "headers": info.headers,
        "metadata": info.metadata,
        "deleted": info.deleted,
        "link": info.link,
    }


def store_json(status: ObjectStoreStatus) -> dict[str, Any]:
    """An object store for `--json`."""
    return {
        "bucket": status.bucket,
        "size": status.size,
        "sealed": status.sealed,
        "created": status.stream_info.created,
        "last_update": status.stream_info.state.last_ts,
        "config": status.config,
        "stream": status.stream_info.config.name,
        "cluster": status.stream_info.cluster,
    }


# --- stores ----------------------------------------------------------------------------------------


@OBJECT.command(
    "add",
    "Create an object store.",
    arguments=(bucket(),),
    options=(STORAGE, *SETTINGS),
    examples=("object add FILES", "object add FILES --ttl 24h --max-bucket-size 10GB"),
)
async def add(run: CommandRun) -> None:
    """Create an object store and show it."""
    settings = settings_of(run.values) | {"storage": storage_of(run.values)}
    async with run.jetstream() as js:
        made = await js.create_object_store(run.values.text("bucket"), **settings)
        _show_store(run, await made.status())


@OBJECT.command("edit", "Change the settings of an object store.", arguments=(bucket(),), options=SETTINGS)
async def edit(run: CommandRun) -> None:
    """Change only the settings that were given, and show the store."""
    name = run.values.text("bucket")
    async with run.jetstream() as js:
        old = (await js.object_store(name)).config
        settings = settings_of(run.values, old.placement)
        if not settings:
            raise CommandFailed("no setting was given; see --help")
        changed = await js.update_object_store(name, **settings)
        _show_store(run, await changed.status())


@OBJECT.command(
    "ls",
    "List the object stores, or the objects of a store.",
    arguments=(bucket(required=False),),
    options=(NAMES,),
    aliases=("list",),
)
async def list_all(run: CommandRun) -> None:
    """List stores or objects."""
    async with run.jetstream() as js:
        if run.values.value("bucket") is None:
            _list_stores(run, [status async for status in js.object_store_statuses()])
            return
        store = await js.object_store(run.values.text("bucket"))
        found = sorted([info async for info in store.list()], key=lambda info: info.name)
    output = run.output
    if output.as_json:
        output.json([info.name if run.values.flag("names") else info_json(info) for info in found])
    elif run.values.flag("names"):
        for info in found:
            output.line(info.name)
    elif not found:
        output.line("No entries found")
    else:
        rows = [(info.name, size_text(info.size), time_text(info.modified)) for info in found]
        output.table(("Name", "Size", "Time"), rows, title="Bucket Contents", numbers="Size")


def _list_stores(run: CommandRun, found: list[ObjectStoreStatus]) -> None:
    found.sort(key=lambda status: (status.size, status.bucket))
    output = run.output
    if output.as_json:
        names_only = run.values.flag("names")
        output.json([status.bucket if names_only else store_json(status) for status in found])
    elif run.values.flag("names"):
        for status in found:
            output.line(status.bucket)
    elif not found:
        output.line("No Object Store buckets found")
    else:
        rows = [bucket_row(one.bucket, one.stream_info, (size_text(one.size),)) for one in found]
        columns = ("Bucket", "Description", "Created", "Size", "Last Update")
        output.table(columns, rows, title="Object Store Buckets", numbers="Size")


@OBJECT.command(
    "info",
    "Show an object store or an object.",
    arguments=(bucket(required=False), _object_name(required=False)),
    aliases=("show", "i"),
)
async def info(run: CommandRun) -> None:
    """Show a store, or an object of it; without a name, let the user choose a store."""
    async with run.jetstream() as js:
        name = run.values.text("bucket") or run.choose("bucket", sorted(await js.object_store_names()))
        store = await js.object_store(name)
        if run.values.value("file") is None:
            _show_store(run, await store.status())
        else:
            _show_object(run, await store.info(run.values.text("file")))


@OBJECT.command(
    "seal",
    "Refuse all further changes of an object store.",
    arguments=(bucket(),),
    options=(FORCE,),
)
async def seal(run: CommandRun) -> None:
    """Seal a store."""
    name = run.values.text("bucket")
    async with run.jetstream() as js:
        store = await js.object_store(name)
        question = f"Seal bucket {name}? Sealed buckets can not be unsealed or modified."
        run.confirm(question, force=run.values.flag("force"))
        await store.seal()
        _show_store(run, await store.status())


def _show_store(run: CommandRun, status: ObjectStoreStatus) -> None:
    if run.output.as_json:
        run.output.json(store_json(status))
        return
    config, stream = status.config, status.stream_info
    rows: list[tuple[str, object]] = [
        ("Bucket Name", status.bucket),
        ("Description", config.description),
        ("Replicas", config.replicas),
        ("TTL", duration_text(config.ttl) if config.ttl else "unlimited"),
        ("Sealed", str(status.sealed).lower()),
        ("Size", size_text(status.size)),
        ("Maximum Bucket Size", size_limit_text(config.max_bytes)),
        ("Compressed", str(config.compression).lower()),
        ("Storage", config.storage.value.capitalize()),
        ("Backing Store Kind", "JetStream"),
        ("JetStream Stream", stream.config.name),
    ]
    title = f"Information for Object Store Bucket {status.bucket} created {time_text(stream.created)}"
    sections = (
        ("Configuration", [row for row in rows if row[1] != ""]),
        ("Metadata", sorted(config.metadata.items())),
        ("Cluster Information", cluster_rows(stream)),
    )
    run.output.sections(title, sections)


def _show_object(run: CommandRun, info: ObjectInfo) -> None:
    if run.output.as_json:
        run.output.json(info_json(info))
        return
    rows: list[tuple[str, object]] = [("Description", info.description)] if info.description else []
    if info.link is not None:
        rows.append(
            ("Link", f"{info.link.bucket} > {info.link.name}" if info.link.name else info.link.bucket)
        )
    rows += [
        ("Size", size_text(info.size)),
        ("Modification Time", time_text(info.modified)),
        ("Chunks", number_text(info.chunks)),
        ("Digest", _digest_text(info.digest)),
    ]
    headers = [(name, value) for name, values in info.headers.items() for value in values]
    sections = (("", rows), ("Headers", headers), ("Metadata", sorted(info.metadata.items())))
    run.output.sections(f"Object information for {info.bucket} > {info.name}", sections)


def _digest_text(digest: str) -> str:
    kind, _, encoded = digest.partition("=")
    return (
        f"{kind} {base64.urlsafe_b64decode(encoded + '=' * (-len(encoded) % 4)).hex()}" if encoded else "none"
    )


# --- objects ---------------------------------------------------------------------------------------


@OBJECT.command(
    "put",
    "Store a file, or stdin with --name.",
    arguments=(
        bucket(),
        Argument(name="file", help="The file to store", required=False, convert=existing_file),
    ),
    options=(
        Option(names=("--name",), help="The name of the object (default: the path of the file)"),
        Option(names=("--description",), metavar="TEXT", help="A description of the object"),
        Option(names=("--header", "-H"), convert=header, repeated=True, help="Add a header"),
        Option(names=("--chunk-size",), convert=count, help="Bytes of a chunk (default: 131072)"),
        PROGRESS,
        FORCE,
    ),
    examples=("object put FILES report.pdf", "tar c . | penstock object put FILES --name backup.tar"),
)
async def put(run: CommandRun) -> None:
    """Store an object and show it."""
    values = run.values
    source = values.path("file")
    name = values.text("name") or (_name_of(source) if source is not None else "")
    if not name:
        raise MisuseError("--name is missing: stdin is stored, and an object has a name")
    if source is None and sys.stdin.isatty():
        raise MisuseError("a file is missing, and stdin is a terminal")
    options: dict[str, Any] = (
        {"chunk_size": values.number("chunk-size")} if values.given("chunk-size") else {}
    )
    async with run.jetstream() as js:
        store = await js.object_store(values.text("bucket"))
        await _confirm_replacement(run, store, name)
        total = source.stat().st_size if source is not None else None
        shown = values.value("progress")
        with run.output.progress(name, total, shown=shown if total is not None else False) as bar:
            made = await store.put(
                name,
                source if source is not None else sys.stdin.buffer,
                description=values.text("description"),
                headers=values.pairs("header"),
                progress=_Counted(bar),
                **options,
            )
    _show_object(run, made)


def _name_of(source: Path) -> str:
    """The object's name: the file's path as given, without `./`, `//` and the like."""
    return os.path.normpath(source)


async def _confirm_replacement(run: CommandRun, store: ObjectStore, name: str) -> None:
    if run.values.flag("force"):
        return
    try:
        old = await store.info(name)
    except ObjectNotFoundError:
        return
    run.confirm(f"Replace existing file {store.bucket} > {name} ({size_text(old.size)})?", force=False)


class _Counted:
    """Progress of a transfer for a progress bar: bytes so far become bytes more."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._done = 0

    def __call__(self, done: int, total: int | None) -> None:
        self._bar.advance(done - self._done)
        self._done = done


@OBJECT.command(
    "get",
    "Write an object to a file.",
    arguments=(bucket(), _object_name(required=True)),
    options=(
        Option(
            names=("--output", "-O"), convert=path, help="The file to write, - for stdout (default: its name)"
        ),
        PROGRESS,
        FORCE,
    ),
    examples=("object get FILES report.pdf", "object get FILES backup.tar -O - | tar x"),
)
async def get(run: CommandRun) -> None:
    """Write an object to a file, which appears once it is complete."""
    values = run.values
    name = values.text("file")
    target = values.path("output") or Path(Path(name).name)
    async with run.jetstream() as js:
        store = await js.object_store(values.text("bucket"))
        if str(target) == "-":
            async with store.open(name) as reader:
                async for chunk in reader:
                    run.output.raw(chunk)
            return
        found = await store.info(name)
        if target.exists():
            run.confirm(f"Replace existing target file {target.resolve()}?", force=values.flag("force"))
        started = time.perf_counter()
        with run.output.progress(name, found.size, shown=values.value("progress")) as bar:
            written = await store.get_to_file(name, target, progress=_Counted(bar))
        took_s = time.perf_counter() - started
    if run.output.as_json:
        run.output.json({"object": info_json(written), "file": str(target.resolve()), "seconds": took_s})
        return
    rate = f" average {size_text(written.size / took_s)}/s" if took_s > 2 else ""
    took = f"{target.resolve()} in {duration_text(took_s)}{rate}"
    run.output.line(f"Wrote: {size_text(written.size)} to {took}")


@OBJECT.command(
    "del",
    "Delete an object, or a store with all its objects.",
    arguments=(bucket(), _object_name(required=False)),
    options=(FORCE,),
    aliases=("rm",),
)
async def delete(run: CommandRun) -> None:
    """Delete an object or a store."""
    bucket_name, force = run.values.text("bucket"), run.values.flag("force")
    async with run.jetstream() as js:
        store = await js.object_store(bucket_name)
        if run.values.value("file") is None:
            run.confirm(f"Delete bucket {bucket_name} and all its files?", force=force)
            await js.delete_object_store(bucket_name)
            page, text = {"bucket": bucket_name, "deleted": True}, f"Removed bucket {bucket_name}"
        else:
            name = run.values.text("file")
            old = await store.info(name)
            run.confirm(f"Delete {size_text(old.size)} file {bucket_name} > {name}?", force=force)
            await store.delete(name)
            page = {"bucket": bucket_name, "name": name, "deleted": True}
            text = f"Removed {bucket_name} > {name}"
    if run.output.as_json:
        run.output.json(page)
    else:
        run.output.line(text)


@OBJECT.command(
    "watch",
    "Show changes of an object store as they are made, after its present objects.",
    arguments=(bucket(),),
    options=(
        Option(names=("--updates",), convert=bool, help="Begin with the next change"),
        COUNT,
    ),
)
async def watch(run: CommandRun) -> None:
    """Print changes until interrupted, or until --count are printed."""
    async with run.jetstream() as js:
        store = await js.object_store(run.values.text("bucket"))
        left = run.values.number("count")
        async with store.watch(updates_only=run.values.flag("updates")) as changes:
            async for change in changes:
                if change is None:
                    continue
                _print_change(run, change)
                left -= 1
                if left == 0:
                    return


def _print_change(run: CommandRun, info: ObjectInfo) -> None:
    if run.output.as_json:
        run.output.json_line(info_json(info))
        return
    where = f"{info.bucket} > {info.name}"
    when = time_text(info.modified)
    if info.deleted:
        run.output.line(f"[{when}] DEL {where}")
    else:
        size = f"{size_text(info.size)} bytes in {number_text(info.chunks)} chunks"
        run.output.line(f"[{when}] PUT {where}: {size}")
    run.output.flush()
