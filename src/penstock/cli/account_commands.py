"""`penstock account`: the account of the connection, its traffic, and a backup of all its streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.cli.bucket_options import FORCE
from penstock.cli.framework.command_run import CommandFailed, CommandRun
from penstock.cli.framework.command_table import Argument, CommandGroup, Option
from penstock.cli.framework.value_kinds import path
from penstock.cli.framework.value_texts import (
    duration_text,
    limit_text,
    number_text,
    size_limit_text,
    size_text,
)
from penstock.cli.reports.server_tables import CONNECTION_KEYS, ServerTable, connection_table
from penstock.cli.reports.system_requests import SystemAnswer, SystemRequestError, decode_page
from penstock.cli.server_report_commands import (
    CONNECTION_FILTERS,
    TOP,
    chosen_connections,
    connection_filters,
)
from penstock.cli.server_selection import REVERSE, print_table, sort_option
from penstock.cli.streams.stream_archives import (
    BACKUP_OPTIONS,
    DESCRIPTION,
    PROGRESS,
    restore_archive,
    write_archive,
)
from penstock.cli.streams.stream_settings import SETTING_OPTIONS
from penstock.client import AccountInfo, Client
from penstock.errors import JetStreamNotEnabledError, NoRespondersError, PenstockError, RequestTimeoutError
from penstock.protocol.api.account_info import AccountUse

ACCOUNT = CommandGroup("account", "Show the account, and back up its streams.", aliases=("a",))


@ACCOUNT.command("info", "Show the user, its account and the account's use of JetStream.", aliases=("nfo",))
async def info(run: CommandRun) -> None:
    """Show user, connection, permissions, and use and limits of JetStream."""
    async with run.connect() as client:
        user = await _user_info(run, client)
        rtt_s = await client.rtt()
        server = client.server_info
        try:
            jetstream: AccountInfo | None = await run.jetstream_of(client).account_info()
        except (JetStreamNotEnabledError, RequestTimeoutError):
            jetstream = None
        url = client.connected_url
    if run.output.as_json:
        connection = {"url": url, "rtt_s": rtt_s, "server": server}
        run.output.json({"user": user, "connection": connection, "jetstream": jetstream})
        return
    rows: list[tuple[str, object]] = [
        ("User", user.get("user_name") or user.get("user", "")),
        ("Account", user.get("account_name") or user.get("account", "")),
        ("Expires", duration_text(user["expires"] / 1e9) if user.get("expires") else "never"),
        ("Client ID", server.client_id),
        ("Client IP", server.client_ip),
        ("RTT", duration_text(rtt_s)),
        ("Headers Supported", str(server.headers).lower()),
        ("Maximum Payload", size_text(server.max_payload)),
        ("Connected URL", url or ""),
        ("Connected Server", f"{server.server_name} ({server.server_id})"),
        ("Connected Server Version", server.version),
    ]
    sections: list[tuple[str, list[tuple[str, object]]]] = [("", rows)]
    sections.append(("Permissions", _permission_rows(user.get("permissions") or {})))
    if jetstream is None:
        sections.append(("JetStream", [("State", "not enabled for this account")]))
    else:
        uses: dict[str, AccountUse] = {
            f"JetStream tier {name}": tier for name, tier in jetstream.tiers.items()
        }
        sections += [(name, _use_rows(use)) for name, use in (uses or {"JetStream": jetstream}).items()]
        api = jetstream.api
        sections.append(("JetStream API", [
            ("API Level", api.level), ("Requests", number_text(api.total)),
            ("Errors", number_text(api.errors)),
        ]))  # fmt: skip
    run.output.sections("Account Information", sections)


async def _user_info(run: CommandRun, client: Client) -> dict[str, Any]:
    """What the server says of the user; {} if it does not answer."""
    try:
        answer = await client.request("$SYS.REQ.USER.INFO", timeout=run.settings.timeout_s)
    except (NoRespondersError, RequestTimeoutError):
        return {}
    return SystemAnswer(decode_page(answer.data), 0).data


def _permission_rows(permissions: dict[str, Any]) -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = []
    for direction, title in (("publish", "Publish"), ("subscribe", "Subscribe")):
        for kind in ("allow", "deny"):
            found = (permissions.get(direction) or {}).get(kind) or []
            if found:
                rows.append((f"{title} {kind}", "\n".join(found)))
    return rows


def _use_rows(use: AccountUse) -> list[tuple[str, object]]:
    limits = use.limits
    return [
        ("Memory", f"{size_text(use.memory)} of {size_limit_text(limits.max_memory)}"),
        ("Storage", f"{size_text(use.storage)} of {size_limit_text(limits.max_storage)}"),
        ("Streams", f"{number_text(use.streams)} of {limit_text(limits.max_streams)}"),
        ("Consumers", f"{number_text(use.consumers)} of {limit_text(limits.max_consumers)}"),
        ("Max Ack Pending", limit_text(limits.max_ack_pending)),
        ("Max Stream Memory", size_limit_text(limits.memory_max_stream_bytes)),
        ("Max Stream Storage", size_limit_text(limits.storage_max_stream_bytes)),
    ]


# --- reports ---------------------------------------------------------------------------------------

REPORT = ACCOUNT.group("report", "Report on the account.", aliases=("rep",))


@REPORT.command(
    "connections",
    "Report on the connections of the account.",
    options=(sort_option(tuple(CONNECTION_KEYS), "subs"), REVERSE, TOP, *CONNECTION_FILTERS),
    aliases=("conn", "connz", "conns"),
)
async def connections(run: CommandRun) -> None:
    """Report on connections; any user may ask about its own account."""
    async with run.connect() as client:
        options = connection_filters(run, "") | {"limit": 100_000}
        answers = await _ask_own(run, client, "$SYS.REQ.SERVER.PING.CONNZ", options)
    found = chosen_connections(run, answers)
    if run.output.as_json:
        run.output.json(found)
    else:
        print_table(run, connection_table(found, title=f"Top {len(found)} Connections of the account"))


@REPORT.command("statistics", "Report on the traffic of the account at each server.",
                aliases=("stats", "statsz"))  # fmt: skip
async def statistics(run: CommandRun) -> None:
    """Report on messages and bytes of the account, by server."""
    async with run.connect() as client:
        answers = await _ask_own(run, client, "$SYS.REQ.ACCOUNT.PING.STATZ", {})
    stats = [
        {"server": answer.server_name, **one}
        for answer in answers
        for one in answer.data.get("account_statz") or []
    ]
    if run.output.as_json:
        run.output.json(stats)
        return
    rows: list[tuple[object, ...]] = [
        (one["server"], one.get("acc", ""), number_text(one.get("conns", 0)),
         number_text(one.get("leafnodes", 0)), number_text(one.get("num_subscriptions", 0)),
         number_text(one.get("slow_consumers", 0)), *_traffic(one.get("sent")),
         *_traffic(one.get("received")))
        for one in stats
    ]  # fmt: skip
    columns = ("Server", "Account", "Connections", "Leafnodes", "Subs", "Slow", "Sent", "Bytes Sent",
               "Received", "Bytes Received")  # fmt: skip
    print_table(run, ServerTable("Account Statistics", columns, rows, ",".join(columns[2:])))


def _traffic(data: dict[str, int] | None) -> tuple[str, str]:
    found = data or {}
    return number_text(found.get("msgs", 0)), size_text(found.get("bytes", 0))


async def _ask_own(
    run: CommandRun, client: Client, subject: str, options: dict[str, Any]
) -> list[SystemAnswer]:
    """Ask all servers about the own account. Raises SystemRequestError if none answers."""
    import msgspec

    body = msgspec.json.encode(options)
    answers = client.request_many(subject, body, timeout=run.settings.timeout_s, stall=0.3)
    try:
        found = [SystemAnswer(decode_page(answer.data), 0) async for answer in answers]
    except NoRespondersError:
        found = []
    if not found:
        raise SystemRequestError(f"no server answered {subject}; does it have a system account?")
    return found


# --- backups ---------------------------------------------------------------------------------------


@ACCOUNT.command(
    "backup",
    "Write all streams of the account, with their consumers, to a directory.",
    arguments=(Argument(name="target", help="Directory to write to", convert=path),),
    options=(*BACKUP_OPTIONS, FORCE),
    aliases=("snapshot",),
    details="Each stream gets a directory of its own, as `stream backup` writes it. A stream that fails is "
    "named, and the others are written nevertheless; the exit status is 1 then.",
    examples=("account backup /var/backups/account",),
)
async def backup(run: CommandRun) -> None:
    """Back up every stream."""
    target = Path(run.values.text("target"))
    written, failed = [], {}
    async with run.connect() as client:
        js = run.jetstream_of(client)
        names = sorted(await js.stream_names())
        question = f"Write {len(names)} streams to {target}?"
        run.confirm(question, force=run.values.flag("force") or not run.can_ask)
        for name in names:
            try:
                written.append(await write_archive(run, client, name, target / name))
            except (PenstockError, OSError) as error:
                failed[name] = str(error)
                run.output.warn(f"{run.path}: stream {name}: {error}")
    if run.output.as_json:
        run.output.json({"target": str(target), "streams": written, "failed": failed})
    else:
        run.output.line(f"Wrote {len(written)} of {len(names)} streams to {target}")
    if failed:
        raise CommandFailed(f"not written: {', '.join(failed)}")


@ACCOUNT.command(
    "restore",
    "Create all streams of a backup.",
    arguments=(Argument(name="directory", help="Directory of the backup", convert=path),),
    options=(
        PROGRESS,
        *(one for one in SETTING_OPTIONS if one.key in ("replicas", "cluster", "tag")),
        Option(names=("--skip-existing",), convert=bool, help="Leave out streams that exist"),
    ),
    examples=("account restore /var/backups/account",),
)
async def restore(run: CommandRun) -> None:
    """Restore every stream of a directory."""
    source = Path(run.values.text("directory"))
    folders = _backups_in(source)
    if not folders:
        raise CommandFailed(f"{source} has no backups of streams")
    restored, failed = [], {}
    async with run.connect() as client:
        js = run.jetstream_of(client)
        existing = set(await js.stream_names())
        for folder in folders:
            if folder.name in existing and run.values.flag("skip-existing"):
                run.output.note(f"Stream {folder.name} exists; left out")
                continue
            try:
                info = await restore_archive(run, client, folder)
            except (PenstockError, OSError) as error:
                failed[folder.name] = str(error)
                run.output.warn(f"{run.path}: {folder}: {error}")
                continue
            restored.append({"stream": info.config.name, "state": info.state})
            run.output.note(f"Restored {info.config.name}: {number_text(info.state.messages)} messages")
    if run.output.as_json:
        run.output.json({"streams": restored, "failed": failed})
    else:
        run.output.line(f"Restored {len(restored)} of {len(folders)} streams from {source}")
    if failed:
        raise CommandFailed(f"not restored: {', '.join(failed)}")


def _backups_in(source: Path) -> list[Path]:
    """Directories below `source` that are backups of streams."""
    return sorted(path.parent for path in source.glob(f"*/{DESCRIPTION}"))
