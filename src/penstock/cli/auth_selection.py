"""The store that `penstock auth` works on, and what a command selects of it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from penstock.cli.framework.cli_contexts import contexts_folder
from penstock.cli.framework.command_run import CommandFailed, CommandRun
from penstock.cli.framework.command_table import Argument, Option
from penstock.cli.framework.value_kinds import path, seconds
from penstock.cli.framework.value_texts import time_text
from penstock.cli.identities.identity_issuing import IdentityIssuing
from penstock.cli.identities.identity_store import IdentityStore
from penstock.cli.private_files import write_private
from penstock.protocol.claims import Claims

STORE = Option(
    names=("--store",), convert=path, env="PENSTOCK_AUTH_STORE",
    help="Directory of the store (default: that of the official tools, ~/.local/share/nats/nsc)",
)  # fmt: skip
OPERATOR = Option(names=("--operator",), metavar="NAME", help="Operator (default: the selected or only one)")
ACCOUNT_NAME = Argument(name="account", help="Name of the account")
NAMES_ONLY = Option(names=("--names", "-n"), convert=bool, help="Show just the names")
EXPIRY = Option(
    names=("--expiry", "--expire"), convert=seconds, help="How long it is valid (default: for ever)"
)
TAGS = Option(names=("--tags",), repeated=True, commas=True, metavar="TAG", help="Tags")


def issuing_of(run: CommandRun) -> IdentityIssuing:
    """What changes the store of a command."""
    root = run.values.path("store")
    if root is None:
        share = os.path.join(run.environment.get("HOME", "~"), ".local/share")
        home = run.environment.get("XDG_DATA_HOME") or share
        root = Path(home).expanduser() / "nats" / "nsc"
    return IdentityIssuing(IdentityStore(root), lambda: int(time.time()), os.urandom)


def selected_operator(run: CommandRun, store: IdentityStore, key: str = "operator") -> str:
    """The operator of a command: the named one, the selected one, or the only one.

    key: the argument or option that may name it. Raises IdentityError if the named one does not exist,
    CommandFailed if there is none, UsageError if there are several and no terminal to ask at.
    """
    names = store.operators()
    named = run.values.text(key)
    if named:
        return store.operator(named).name
    selection = _selection(run)
    if selection in names:
        return selection
    if not names:
        raise CommandFailed("there is no operator; add one by `penstock auth operator add NAME`")
    return names[0] if len(names) == 1 else run.choose("operator", names)


def _config_path(run: CommandRun) -> Path:
    return contexts_folder(run.environment) / "cli" / "config.json"


def _selection(run: CommandRun) -> str:
    """The operator selected by `auth operator select`, here or in the official command line."""
    try:
        found = msgspec.json.decode(_config_path(run).read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return ""
    return str(found.get("select_operator", ""))


def select_operator(run: CommandRun, name: str) -> None:
    """Select an operator for commands that name none."""
    write_private(_config_path(run), msgspec.json.encode({"select_operator": name}).decode())


def expiry_of(run: CommandRun) -> int | None:
    """The time of --expiry in s since 1970; None if it was not given, 0 = never."""
    if not run.values.given("expiry"):
        return None
    left_s = run.values.seconds("expiry")
    return int(time.time() + left_s) if left_s > 0 else 0


def claims_json(claims: Claims) -> Any:
    """Claims for `--json`, as they are in the token."""
    return msgspec.to_builtins(claims)


def claims_rows(claims: Claims) -> list[tuple[str, object]]:
    """What all claims have in common, for a page of information."""
    rows: list[tuple[str, object]] = [("Name", claims.name), ("Subject", claims.subject),
                                      ("Issuer", claims.issuer),
                                      ("Issued", _time(claims.issued_at))]  # fmt: skip
    return [*rows, ("Expires", _time(claims.expires) if claims.expires else "never")]


def _time(at_s: int) -> str:
    from datetime import UTC, datetime

    return time_text(datetime.fromtimestamp(at_s, UTC))


def print_names(run: CommandRun, names: list[str], columns: tuple[str, ...],
                rows: Iterable[tuple[object, ...]], title: str) -> None:  # fmt: skip
    """Print a list: names, or a table with more about them."""
    if run.output.as_json:
        run.output.json(names)
    elif run.values.flag("names"):
        run.output.raw("".join(f"{name}\n" for name in names).encode())
    elif not names:
        run.output.line(f"No {title.lower()} found")
    else:
        run.output.table(columns, rows, title=title)


def print_removed(run: CommandRun, what: str, name: str) -> None:
    """Print that something was removed."""
    if run.output.as_json:
        run.output.json({"removed": name})
    else:
        run.output.line(f"Removed {what} {name}")
