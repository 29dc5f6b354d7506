"""`penstock kv`: key-value buckets."""

from __future__ import annotations

from typing import Any

from penstock.cli.bucket_options import (
    COUNT,
    FORCE,
    NAMES,
    SETTINGS,
    STORAGE,
    bucket,
    bucket_row,
    cluster_rows,
    printable,
    settings_of,
    shortened,
    storage_of,
    value_or_stdin,
)
from penstock.cli.framework.command_run import CommandFailed, CommandRun
from penstock.cli.framework.command_table import Argument, CommandGroup, Option
from penstock.cli.framework.value_kinds import count, seconds, size, whole
from penstock.cli.framework.value_texts import (
    ago_text,
    duration_text,
    number_text,
    size_limit_text,
    size_text,
    time_text,
)
from penstock.client import (
    ExternalStream,
    KeyValue,
    KeyValueConfig,
    KeyValueEntry,
    KeyValueStatus,
    Republish,
    StreamSource,
)
from penstock.client.keyvalue.key_subjects import ALL_KEYS

SHOWN_CHARACTERS = 120
KEY = Argument(name="key", help="The key to act on")
VALUE = Argument(name="value", help="The value to store; stdin without it", required=False)
REVISION = Argument(name="revision", help="A revision of the key", convert=count)
TTL = Option(names=("--ttl",), convert=seconds, help="Time to live of this key")

BUCKET_SETTINGS = (
    Option(names=("--history",), convert=count, help="How many values to keep per key (default: 1)"),
    Option(names=("--marker-ttl",), convert=seconds,
           help="Allow a time to live per key, and keep markers of expired keys for so long"),
    Option(names=("--max-value-size",), convert=size, help="Maximum size of a value"),
    *SETTINGS,
    Option(names=("--republish-source",), metavar="SRC", help="Republish messages of these subjects"),
    Option(names=("--republish-destination",), metavar="DEST", help="Subject to republish to"),
    Option(names=("--republish-headers",), convert=bool, help="Republish headers only"),
    Option(names=("--source",), repeated=True, metavar="BUCKET", help="Copy the values of another bucket"),
)  # fmt: skip
MIRROR = (
    Option(names=("--mirror",), metavar="BUCKET", help="Mirror another bucket"),
    Option(names=("--mirror-domain",), metavar="DOMAIN", help="JetStream domain of the bucket to mirror"),
)

KV = CommandGroup("kv", "Work with key-value buckets.")


def entry_json(entry: KeyValueEntry) -> dict[str, Any]:
    """An entry for `--json`. The value is text, or base64 in `value_base64` if it is not printable."""
    text = printable(entry.value)
    key = "value" if text.encode() == entry.value else "value_base64"
    return {
        "bucket": entry.bucket,
        "key": entry.key,
        key: text,
        "revision": entry.revision,
        "operation": entry.operation,
        "created": entry.created.isoformat(),
        "delta": entry.delta,
    }


def status_json(status: KeyValueStatus) -> dict[str, Any]:
    """A bucket for `--json`."""
    info = status.stream_info
    return {
        "bucket": status.bucket,
        "values": status.values,
        "bytes": status.bytes,
        "created": info.created,
        "last_update": info.state.last_ts,
        "config": status.config,
        "stream": info.config.name,
        "cluster": info.cluster,
    }


# --- buckets ---------------------------------------------------------------------------------------


def _bucket_settings(run: CommandRun, old: KeyValueConfig | None) -> dict[str, Any]:
    values = run.values
    found = settings_of(values, old.placement if old else None)
    names = {"history": "history", "marker-ttl": "limit_marker_ttl", "max-value-size": "max_value_size"}
    found |= {ours: values.value(name) for name, ours in names.items() if values.given(name)}
    if values.given("source"):
        found["sources"] = values.texts("source")
    if values.any_given("republish-source", "republish-destination", "republish-headers"):
        before = old.republish if old and old.republish else Republish(src=ALL_KEYS)
        found["republish"] = Republish(
            src=values.text("republish-source") or before.src,
            dest=values.text("republish-destination") or before.dest,
            headers_only=values.flag("republish-headers") or before.headers_only,
        )
    return found


@KV.command(
    "add",
    "Create a bucket.",
    arguments=(bucket(),),
    options=(STORAGE, *BUCKET_SETTINGS, *MIRROR),
    aliases=("new",),
    examples=("kv add CONFIG", "kv add CONFIG --history 5 --ttl 24h --replicas 3"),
)
async def add(run: CommandRun) -> None:
    """Create a bucket and show it."""
    settings = _bucket_settings(run, None)
    settings["storage"] = storage_of(run.values)
    if run.values.given("mirror"):
        domain = run.values.text("mirror-domain")
        external = ExternalStream(api=f"$JS.{domain}.API") if domain else None
        settings["mirror"] = StreamSource(name=run.values.text("mirror"), external=external)
    async with run.jetstream() as js:
        made = await js.create_key_value(run.values.text("bucket"), **settings)
        _show_status(run, await made.status())


@KV.command(
    "edit",
    "Change the settings of a bucket.",
    arguments=(bucket(),),
    options=(
        *BUCKET_SETTINGS,
        Option(names=("--no-mirror",), convert=bool, help="Make a mirror a bucket of its own"),
    ),
    examples=("kv edit CONFIG --history 10",),
)
async def edit(run: CommandRun) -> None:
    """Change only the settings that were given, and show the bucket."""
    name = run.values.text("bucket")
    async with run.jetstream() as js:
        old = (await js.key_value(name)).config
        settings = _bucket_settings(run, old)
        if run.values.flag("no-mirror"):
            settings["mirror"] = None
        if not settings:
            raise CommandFailed("no setting was given; see --help")
        changed = await js.update_key_value(name, **settings)
        _show_status(run, await changed.status())


@KV.command(
    "ls",
    "List the buckets, or the keys of a bucket.",
    arguments=(
        bucket(required=False),
        Argument(name="key", help="Only keys that match this filter", required=False),
    ),
    options=(
        NAMES,
        Option(names=("--verbose", "-v"), convert=bool, help="Show details of the keys"),
        Option(names=("--display-value",), convert=bool, help="With --verbose: show values too"),
    ),
    aliases=("list",),
)
async def list_all(run: CommandRun) -> None:
    """List buckets or keys."""
    async with run.jetstream() as js:
        if run.values.value("bucket") is None:
            await _list_buckets(run, [status async for status in js.key_value_statuses()])
        else:
            await _list_keys(run, await js.key_value(run.values.text("bucket")))


async def _list_buckets(run: CommandRun, found: list[KeyValueStatus]) -> None:
    found.sort(key=lambda status: (status.bytes, status.bucket))
    output = run.output
    if output.as_json:
        names_only = run.values.flag("names")
        output.json([status.bucket if names_only else status_json(status) for status in found])
    elif run.values.flag("names"):
        for status in found:
            output.line(status.bucket)
    elif not found:
        output.line("No Key-Value buckets found")
    else:
        rows = [
            bucket_row(one.bucket, one.stream_info, (size_text(one.bytes), number_text(one.values)))
            for one in found
        ]
        columns = ("Bucket", "Description", "Created", "Size", "Values", "Last Update")
        output.table(columns, rows, title="Key-Value Buckets", numbers="Size,Values")


async def _list_keys(run: CommandRun, store: KeyValue) -> None:
    values, output = run.values, run.output
    filters = [values.text("key")] if values.value("key") else []
    if not values.flag("verbose"):
        keys = [key async for key in store.keys(*filters)]
        if output.as_json:
            output.json(keys)
        elif keys:
            output.line("\n".join(keys))
        else:
            output.line("No keys found in bucket")
        return
    with_value = values.flag("display-value")
    async with store.watch(*filters, ignore_deletes=True, meta_only=not with_value) as watch:
        entries = await watch.initial()
    if output.as_json:
        output.json([entry_json(entry) for entry in entries])
        return
    columns = ["Key", "Created", "Delta", "Revision"] + (["Value"] if with_value else [])
    rows = [
        [one.key, time_text(one.created), one.delta, one.revision]
        + ([shortened(printable(one.value))] if with_value else [])
        for one in entries
    ]
    title = f"Contents for bucket '{store.bucket}'"
    output.table(columns, rows, title=title, numbers="Delta,Revision")


@KV.command(
    "info",
    "Show the settings and state of a bucket.",
    arguments=(bucket(required=False),),
    aliases=("view", "status"),
)
async def info(run: CommandRun) -> None:
    """Show a bucket; without its name, let the user choose."""
    async with run.jetstream() as js:
        name = run.values.text("bucket") or run.choose("bucket", sorted(await js.key_value_names()))
        _show_status(run, await (await js.key_value(name)).status())


def _show_status(run: CommandRun, status: KeyValueStatus) -> None:
    if run.output.as_json:
        run.output.json(status_json(status))
        return
    config, stream = status.config, status.stream_info
    rows: list[tuple[str, object]] = [
        ("Bucket Name", status.bucket),
        ("Description", config.description),
        ("History Kept", config.history),
        ("Values Stored", number_text(status.values)),
        ("Compressed", str(config.compression).lower()),
        ("Per-Key TTL Supported", str(stream.config.allow_msg_ttl).lower()),
        ("Limit Marker TTL", duration_text(config.limit_marker_ttl) if config.limit_marker_ttl else ""),
        ("Backing Store Kind", "JetStream"),
        ("Bucket Size", size_text(status.bytes)),
        ("Maximum Bucket Size", size_limit_text(config.max_bytes)),
        ("Maximum Value Size", size_limit_text(config.max_value_size)),
        ("Maximum Age", duration_text(config.ttl) if config.ttl else "unlimited"),
        ("JetStream Stream", stream.config.name),
        ("Storage", config.storage.value.capitalize()),
        ("Replicas", config.replicas),
        ("Last Update", ago_text(stream.state.last_ts)),
    ]
    if config.republish is not None:
        what = "Republishing Headers" if config.republish.headers_only else "Republishing"
        rows.append((what, f"{config.republish.src} to {config.republish.dest}"))
    origins = []
    for source in [stream.mirror, *stream.sources]:
        if source is not None:
            seen = "never seen" if source.active < 0 else f"seen {duration_text(source.active)} ago"
            origins.append((source.name.removeprefix("KV_"), f"lag {source.lag}, {seen}"))
    title = f"Information for Key-Value Store Bucket {status.bucket} created {time_text(stream.created)}"
    sections = (
        ("Configuration", [row for row in rows if row[1] != ""]),
        ("Mirror Information" if stream.mirror else "Sources Information", origins),
        ("Metadata", sorted(config.metadata.items())),
        ("Cluster Information", cluster_rows(stream)),
    )
    run.output.sections(title, sections)


# --- values ----------------------------------------------------------------------------------------


async def _stored(run: CommandRun, key: str, revision: int, value: bytes) -> None:
    """Show what was written: the value, as the official command line does."""
    if run.output.as_json:
        run.output.json({"bucket": run.values.text("bucket"), "key": key, "revision": revision})
    else:
        run.output.line(printable(value))


@KV.command(
    "put",
    "Store a value, whatever the key has now.",
    arguments=(bucket(), KEY, VALUE),
    options=(TTL,),
    examples=("kv put CONFIG db.url postgres://db", "kv put CONFIG logo <logo.png"),
)
async def put(run: CommandRun) -> None:
    """Store a value."""
    value, key = value_or_stdin(run, "value"), run.values.text("key")
    ttl = run.values.value("ttl")
    async with run.jetstream() as js:
        store = await js.key_value(run.values.text("bucket"))
        await _stored(run, key, await store.put(key, value, ttl=ttl), value)


@KV.command(
    "create",
    "Store a value if the key has none.",
    arguments=(bucket(), KEY, VALUE),
    options=(TTL,),
    examples=("kv create LOCKS leader host-1 --ttl 30s",),
)
async def create(run: CommandRun) -> None:
    """Store a value if the key is new or was deleted."""
    value, key = value_or_stdin(run, "value"), run.values.text("key")
    ttl = run.values.value("ttl")
    async with run.jetstream() as js:
        store = await js.key_value(run.values.text("bucket"))
        await _stored(run, key, await store.create(key, value, ttl=ttl), value)


@KV.command(
    "update",
    "Store a value if the key's last revision is the given one.",
    arguments=(
        bucket(),
        KEY,
        Argument(name="value", help="The value to store"),
        Argument(name="revision", help="The last revision of the key; 0 = it has none", convert=whole),
    ),
    examples=("kv update CONFIG db.url postgres://db2 17",),
)
async def update(run: CommandRun) -> None:
    """Store a value by compare and set."""
    value, key = value_or_stdin(run, "value"), run.values.text("key")
    async with run.jetstream() as js:
        store = await js.key_value(run.values.text("bucket"))
        revision = await store.update(key, value, last_revision=run.values.number("revision"))
        await _stored(run, key, revision, value)


@KV.command(
    "get",
    "Show the value of a key.",
    arguments=(bucket(), KEY),
    options=(
        Option(names=("--revision",), convert=count, help="A specific revision"),
        Option(names=("--raw",), convert=bool, help="Print nothing but the value, as it is stored"),
    ),
    examples=("kv get CONFIG db.url", "kv get CONFIG logo --raw >logo.png"),
)
async def get(run: CommandRun) -> None:
    """Show a value."""
    async with run.jetstream() as js:
        store = await js.key_value(run.values.text("bucket"))
        entry = await store.get(run.values.text("key"), run.values.value("revision"))
    if run.output.as_json:
        run.output.json(entry_json(entry))
        return
    if run.values.flag("raw"):
        run.output.raw(entry.value)
        return
    run.output.line(
        f"{entry.bucket} > {entry.key} revision: {entry.revision} created @ {time_text(entry.created)}"
    )
    run.output.line()
    text = printable(entry.value)
    if len(text) > SHOWN_CHARACTERS:
        total = number_text(len(text))
        run.output.line(f"Showing first {SHOWN_CHARACTERS} bytes of {total}, use --raw for full data\n")
    run.output.line(text[:SHOWN_CHARACTERS])
    run.output.line()


@KV.command(
    "history",
    "Show all kept values of a key.",
    arguments=(bucket(), KEY),
)
async def history(run: CommandRun) -> None:
    """Show the history of a key, oldest first."""
    async with run.jetstream() as js:
        store = await js.key_value(run.values.text("bucket"))
        entries = await store.history(run.values.text("key"))
    if run.output.as_json:
        run.output.json([entry_json(entry) for entry in entries])
        return
    rows = [
        (one.key, one.revision, one.operation.value, time_text(one.created), number_text(len(one.value)),
         shortened(printable(one.value)))
        for one in entries
    ]  # fmt: skip
    title = f"History for {store.bucket} > {run.values.text('key')}"
    columns = ("Key", "Revision", "Op", "Created", "Length", "Value")
    run.output.table(columns, rows, title=title, numbers="Revision,Length")


@KV.command(
    "revert",
    "Store an earlier value of a key again.",
    arguments=(bucket(), KEY, REVISION),
    options=(FORCE,),
)
async def revert(run: CommandRun) -> None:
    """Store the value of a revision as the newest one, unless the key changes meanwhile."""
    key, revision = run.values.text("key"), run.values.number("revision")
    async with run.jetstream() as js:
        store = await js.key_value(run.values.text("bucket"))
        old = await store.get(key, revision)
        last = (await store.history(key))[-1]
        question = f"Revert {store.bucket} > {key} from revision {last.revision} to revision {revision}?"
        run.confirm(question, force=run.values.flag("force"))
        stored = await store.update(key, old.value, last_revision=last.revision)
        await _stored(run, key, stored, old.value)


@KV.command(
    "del",
    "Delete a key, or a bucket with all its values.",
    arguments=(bucket(), Argument(name="key", help="The key to delete", required=False)),
    options=(FORCE,),
    aliases=("rm",),
)
async def delete(run: CommandRun) -> None:
    """Delete a key or a bucket."""
    name, key, force = run.values.text("bucket"), run.values.text("key"), run.values.flag("force")
    async with run.jetstream() as js:
        store = await js.key_value(name)
        if not key:
            run.confirm(f"Delete bucket {name} and all its values?", force=force)
            await js.delete_key_value(name)
            _done(run, {"bucket": name, "deleted": True}, f"Deleted bucket {name}")
            return
        run.confirm(f"Delete key {name} > {key}?", force=force)
        revision = await store.delete(key)
        _done(run, {"bucket": name, "key": key, "revision": revision}, f"Deleted key {name} > {key}")


@KV.command(
    "purge",
    "Delete a key with its history.",
    arguments=(bucket(), KEY),
    options=(FORCE, Option(names=("--ttl",), convert=seconds, help="Time to live of the marker")),
)
async def purge(run: CommandRun) -> None:
    """Remove all entries of a key, and store a marker."""
    name, key = run.values.text("bucket"), run.values.text("key")
    async with run.jetstream() as js:
        store = await js.key_value(name)
        run.confirm(f"Purge key {name} > {key} with its history?", force=run.values.flag("force"))
        revision = await store.purge(key, ttl=run.values.value("ttl"))
    _done(run, {"bucket": name, "key": key, "revision": revision}, f"Purged key {name} > {key}")


@KV.command(
    "compact",
    "Reclaim the space of deleted keys.",
    arguments=(bucket(),),
    options=(
        FORCE,
        Option(names=("--older-than",), convert=seconds, help="Keep younger markers (default: 30m)"),
    ),
)
async def compact(run: CommandRun) -> None:
    """Remove the entries of deleted keys."""
    name = run.values.text("bucket")
    async with run.jetstream() as js:
        store = await js.key_value(name)
        run.confirm(f"Remove all entries of deleted keys of {name}?", force=run.values.flag("force"))
        older_than = run.values.seconds("older-than", 30 * 60.0)
        removed = await store.purge_deletes(older_than=older_than)
    text = f"Removed {number_text(removed)} entries of bucket {name}"
    _done(run, {"bucket": name, "removed": removed}, text)


@KV.command(
    "watch",
    "Show changes of a bucket, or of the keys that match a filter, as they are made.",
    arguments=(
        bucket(),
        Argument(name="key", help="Filter of keys (default: >)", required=False),
    ),
    options=(
        Option(names=("--history",), convert=bool, help="Begin with all kept values"),
        Option(names=("--deletes",), convert=bool, negatable=True, help="Show deletes (default: yes)"),
        Option(names=("--updates",), convert=bool, help="Begin with the next change"),
        Option(names=("--revision",), convert=count, help="Begin with a revision"),
        COUNT,
    ),
)
async def watch(run: CommandRun) -> None:
    """Print changes until interrupted, or until --count are printed."""
    values = run.values
    async with run.jetstream() as js:
        store = await js.key_value(values.text("bucket"))
        shown = store.watch(
            *([values.text("key")] if values.value("key") else []),
            include_history=values.flag("history"),
            updates_only=values.flag("updates"),
            ignore_deletes=not values.flag("deletes", default=True),
            resume_from_revision=values.value("revision"),
        )
        left = values.number("count")
        async with shown as entries:
            async for entry in entries:
                if entry is None:
                    continue
                _print_change(run, entry)
                left -= 1
                if left == 0:
                    return


def _print_change(run: CommandRun, entry: KeyValueEntry) -> None:
    if run.output.as_json:
        run.output.json_line(entry_json(entry))
        return
    value = "" if entry.is_deleted else f": {printable(entry.value)}"
    when = time_text(entry.created)
    run.output.line(f"[{when}] {entry.operation.value} {entry.bucket} > {entry.key}{value}")
    run.output.flush()


def _done(run: CommandRun, page: dict[str, Any], text: str) -> None:
    if run.output.as_json:
        run.output.json(page)
    else:
        run.output.line(text)
