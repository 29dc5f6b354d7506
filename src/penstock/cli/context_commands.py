"""`penstock context`: named settings of connections, shared with the official command line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from penstock.cli.bucket_options import FORCE
from penstock.cli.context_files import (
    CONTEXT_FIELDS,
    previous_context,
    remove_context,
    save_context,
    select_context,
)
from penstock.cli.framework.cli_contexts import (
    CliContext,
    context_names,
    context_path,
    load_context,
    selected_context,
)
from penstock.cli.framework.command_run import CommandFailed, CommandRun, ask_text
from penstock.cli.framework.command_table import Argument, CommandGroup, Option
from penstock.cli.framework.editing import run_editor
from penstock.errors import ClientError, ConfigError

CONTEXT = CommandGroup("context", "Manage contexts: named settings of connections.", aliases=("ctx",))

NAME = Argument(name="name", help="Name of the context")
ANY_NAME = Argument(name="name", help="Name of the context (default: the selected one)", required=False)
CHOSEN = Argument(name="name", help="Name of the context", required=False)
CONNECT = Option(names=("--connect",), convert=bool, help="Try to connect with it")
DESCRIPTION = Option(names=("--description",), metavar="TEXT", help="A description of the context")
SELECT = Option(names=("--select",), convert=bool, help="Select it for commands that name none")
# Option of a connection -> field of the file.
_FIELD_OF = {
    "server": "url",
    "user": "user",
    "password": "password",
    "token": "token",
    "creds": "creds",
    "nkey": "nkey",
    "jwt": "user_jwt",
    "seed": "user_seed",
    "tlscert": "cert",
    "tlskey": "key",
    "tlsca": "ca",
    "js-domain": "jetstream_domain",
    "js-api-prefix": "jetstream_api_prefix",
    "js-event-prefix": "jetstream_event_prefix",
    "inbox-prefix": "inbox_prefix",
}
_FILES = ("creds", "nkey", "cert", "key", "ca", "user_jwt", "user_seed")
_SECRET = ("password", "token")
_TITLES = {
    "description": "Description",
    "url": "Server URLs",
    "socks_proxy": "SOCKS5 Proxy",
    "user": "Username",
    "password": "Password",
    "token": "Token",
    "creds": "Credentials",
    "nkey": "NKey",
    "user_jwt": "User JWT",
    "user_seed": "User Seed",
    "cert": "Certificate",
    "key": "Key",
    "ca": "CA",
    "tls_first": "TLS First",
    "jetstream_domain": "JS Domain",
    "jetstream_api_prefix": "JS API Prefix",
    "jetstream_event_prefix": "JS Event Prefix",
    "inbox_prefix": "Inbox Prefix",
    "color_scheme": "Color Scheme",
}


@CONTEXT.command(
    "add",
    "Create a context, or change an existing one.",
    arguments=(NAME,),
    options=(DESCRIPTION, SELECT),
    aliases=("create", "save"),
    details="The options of a connection become the settings of the context. Those that are not given stay "
    "as they are in an existing context.",
    examples=("context add local --server nats://127.0.0.1:4222 --select",
              "context add prod --server tls://nats.example.com --creds ~/prod.creds"),
)  # fmt: skip
async def add(run: CommandRun) -> None:
    """Save the settings that were given."""
    name = run.values.text("name")
    old = load_context(name, run.environment).fields if name in context_names(run.environment) else {}
    fields = {**old, **_given_fields(run)}
    if not old and not fields.get("url"):
        fields["url"] = run.settings.url if run.values.given("server") else "nats://localhost:4222"
    _save(run, CliContext(name, fields), select=run.values.flag("select"))
    _show(run, name)


def _given_fields(run: CommandRun) -> dict[str, Any]:
    values = run.values
    fields: dict[str, Any] = {
        field: values.text(option) for option, field in _FIELD_OF.items() if values.given(option)
    }
    for field in _FILES:
        if field in fields and not fields[field].startswith("~") and Path(fields[field]).exists():
            fields[field] = str(Path(fields[field]).resolve())
    if values.given("description"):
        fields["description"] = values.text("description")
    if values.given("tlsfirst"):
        fields["tls_first"] = values.flag("tlsfirst")
    return fields


def _save(run: CommandRun, context: CliContext, *, select: bool) -> None:
    save_context(context, run.environment)
    if select:
        select_context(context.name, run.environment)


@CONTEXT.command(
    "copy",
    "Copy a context, with the changes of the options of a connection.",
    arguments=(Argument(name="source", help="Name of the context to copy"), NAME),
    options=(DESCRIPTION, SELECT),
    aliases=("cp",),
)
async def copy(run: CommandRun) -> None:
    """Save a copy of a context."""
    name = run.values.text("name")
    if name in context_names(run.environment):
        raise CommandFailed(f"context {name!r} exists already")
    source = load_context(run.values.text("source"), run.environment)
    context = CliContext(name, {**source.fields, **_given_fields(run)})
    _save(run, context, select=run.values.flag("select"))
    _show(run, name)


@CONTEXT.command(
    "ls",
    "List the contexts; the selected one has a star.",
    options=(
        Option(names=("--names", "-n"), convert=bool, help="Show just the names"),
        Option(names=("--completion",), convert=bool, help="For the completion of a shell", hidden=True),
    ),
    aliases=("list", "l"),
    connects=False,
)
async def list_all(run: CommandRun) -> None:
    """List the contexts."""
    names, selected = context_names(run.environment), selected_context(run.environment)
    if run.values.flag("names") or run.values.flag("completion"):
        if run.output.as_json:
            run.output.json(names)
        else:
            run.output.raw("".join(f"{name}\n" for name in names).encode())
        return
    found = [load_context(name, run.environment) for name in names]
    if run.output.as_json:
        run.output.json([
            {"name": one.name, "description": one.text("description"), "selected": one.name == selected}
            for one in found
        ])  # fmt: skip
    elif not found:
        run.output.line("No known contexts")
    else:
        rows = [
            (f"{one.name}*" if one.name == selected else one.name, one.text("description")) for one in found
        ]
        run.output.table(("Name", "Description"), rows, title="Known Contexts")


@CONTEXT.command(
    "info",
    "Show the settings of a context.",
    arguments=(ANY_NAME,),
    options=(CONNECT,),
    aliases=("show", "v", "view"),
)
async def info(run: CommandRun) -> None:
    """Show a context; --connect: also try it."""
    name = _named_or_selected(run)
    problem = await _connection_problem(run, name) if run.values.flag("connect") else None
    _show(run, name, problem)
    if problem:
        raise CommandFailed(f"context {name!r}: {problem}")


def _named_or_selected(run: CommandRun) -> str:
    name = run.values.text("name") or selected_context(run.environment)
    if not name:
        raise CommandFailed("no context is named or selected; see `penstock context ls`")
    return name


async def _connection_problem(run: CommandRun, name: str) -> str:
    """Why a connection with a context fails; "" if it works."""
    from penstock.cli.framework.cli_connection import CONNECTION_OPTIONS, resolve
    from penstock.cli.framework.command_parser import parse_command
    from penstock.cli.framework.command_table import Command

    blank = Command(name="", summary="", run=add)
    values = parse_command(blank, ["--context", name], CONNECTION_OPTIONS, run.environment)
    other = CommandRun(run.path, values, run.output, run.environment)
    try:
        resolve(values, run.environment)
        async with other.connect(reconnect=False):
            return ""
    except (ClientError, ConfigError, OSError) as error:
        return str(error)


def _show(run: CommandRun, name: str, problem: str | None = None) -> None:
    context = load_context(name, run.environment)
    if run.output.as_json:
        run.output.json({"name": name, **CONTEXT_FIELDS, **context.fields})
        return
    rows: list[tuple[str, object]] = []
    for field, title in _TITLES.items():
        value = context.fields.get(field)
        if value:
            rows.append((title, _shown(field, str(value))))
    rows.append(("Path", context_path(name, run.environment)))
    if problem is not None:
        rows.append(("Connection", problem or "OK"))
    run.output.sections(f'NATS Configuration Context "{name}"', [("", rows)])


def _shown(field: str, value: str) -> str:
    """A setting without its secret; of a file, whether it can be read."""
    if field in _SECRET:
        return "*" * len(value)
    if field == "url":
        return ",".join(_without_login(one) for one in value.split(","))
    if field not in _FILES:
        return value
    if value.startswith(("eyJ", "SU", "data:")):
        return "embedded"
    is_readable = os.access(Path(value.removeprefix("file://")).expanduser(), os.R_OK)
    return f"{value} ({'OK' if is_readable else 'ERROR: the file can not be read'})"


def _without_login(url: str) -> str:
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    return urlunsplit(parts._replace(netloc=f"xxxxx@{parts.netloc.rpartition('@')[2]}"))


@CONTEXT.command(
    "validate",
    "Check one or all contexts.",
    arguments=(CHOSEN,),
    options=(CONNECT,),
)
async def validate(run: CommandRun) -> None:
    """Check that contexts can be read, that their files are there, and with --connect that they work."""
    environment = run.environment
    names = [run.values.text("name")] if run.values.value("name") else context_names(environment)
    problems = {name: await _context_problems(run, name) for name in names}
    if run.output.as_json:
        run.output.json([{"name": name, "problems": found} for name, found in problems.items()])
    for name, found in problems.items():
        if not run.output.as_json:
            run.output.line(f"{name}: {'; '.join(found) or 'OK'}")
    if any(problems.values()):
        raise CommandFailed(f"{sum(map(bool, problems.values()))} of {len(names)} contexts have problems")


async def _context_problems(run: CommandRun, name: str) -> list[str]:
    try:
        context = load_context(name, run.environment)
    except ConfigError as error:
        return [str(error)]
    shown = {field: _shown(field, context.text(field)) for field in _FILES if context.text(field)}
    found = [f"{_TITLES[field]} {text}" for field, text in shown.items() if "ERROR" in text]
    if run.values.flag("connect") and not found:
        problem = await _connection_problem(run, name)
        found += [problem] if problem else []
    return found


@CONTEXT.command("select", "Select the context of commands that name none.", arguments=(CHOSEN,),
                 aliases=("switch", "set"), connects=False)  # fmt: skip
async def select(run: CommandRun) -> None:
    """Select a context; without a name, let the user choose."""
    name = run.values.text("name") or run.choose("context", context_names(run.environment))
    load_context(name, run.environment)
    select_context(name, run.environment)
    _show(run, name)


@CONTEXT.command("unselect", "Select no context.", connects=False)
async def unselect(run: CommandRun) -> None:
    """Select no context."""
    before = selected_context(run.environment)
    select_context("", run.environment)
    run.output.note(f"Context {before!r} is no longer selected" if before else "No context was selected")


@CONTEXT.command("previous", "Select the context that was selected before.", connects=False)
async def previous(run: CommandRun) -> None:
    """Go back to the previous context."""
    name = previous_context(run.environment)
    if not name:
        raise CommandFailed("no context was selected before")
    load_context(name, run.environment)
    select_context(name, run.environment)
    _show(run, name)


@CONTEXT.command("rm", "Remove a context.", arguments=(NAME,), options=(FORCE,), aliases=("remove",),
                 connects=False)  # fmt: skip
async def remove(run: CommandRun) -> None:
    """Remove a context."""
    name = run.values.text("name")
    load_context(name, run.environment)
    run.confirm(f"Remove context {name}?", force=run.values.flag("force"))
    remove_context(name, run.environment)
    run.output.note(f"Removed context {name}")


@CONTEXT.command("edit", "Change a context in an editor ($VISUAL, $EDITOR).", arguments=(NAME,),
                 aliases=("vi",), connects=False)  # fmt: skip
async def edit(run: CommandRun) -> None:
    """Open the file of a context in an editor, and check it afterwards. A damaged file is restored."""
    name = run.values.text("name")
    load_context(name, run.environment)
    path = context_path(name, run.environment)
    before = path.read_bytes()
    while True:
        run_editor(path, run.environment)
        try:
            load_context(name, run.environment)
        except ConfigError as error:
            if run.can_ask and ask_text(f"{error}\nEdit again? [Y/n] ").lower() not in ("n", "no"):
                continue
            path.write_bytes(before)
            raise CommandFailed(f"{error}; the file is as it was before") from None
        break
    _show(run, name)
