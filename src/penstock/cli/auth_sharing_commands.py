"""`penstock auth account exports|imports`: subjects that accounts share by their tokens."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.cli.auth_selection import (
    NAMES_ONLY,
    OPERATOR,
    STORE,
    issuing_of,
    print_names,
    print_removed,
    selected_operator,
)
from penstock.cli.bucket_options import FORCE
from penstock.cli.framework.command_run import CommandFailed, CommandRun
from penstock.cli.framework.command_table import Argument, CommandGroup, Option
from penstock.cli.framework.value_kinds import whole
from penstock.cli.identities.identity_issuing import IdentityIssuing
from penstock.cli.identities.identity_store import IdentityStore
from penstock.protocol.claims import ExportClaim, ExportKind, ImportClaim
from penstock.protocol.nkeys import is_public

replace = msgspec.structs.replace

ACCOUNT = Argument(name="account", help="Account to act on", required=False)
SUBJECT = Argument(name="subject", help="Its subject")
LOCAL_SUBJECT = Argument(name="subject", help="Its subject in the importing account")
ANY_SUBJECT = Argument(name="subject", help="Its subject", required=False)
SERVICE = Option(names=("--service",), convert=bool, help="A service and not a stream of messages")

EXPORTS = CommandGroup("exports", "Manage what an account exports.", aliases=("e", "exp", "export"))
IMPORTS = CommandGroup("imports", "Manage what an account imports.", aliases=("imp", "import"))
_EXPORT_OPTIONS = (
    Option(names=("--description",), metavar="TEXT", help="What it is for"),
    Option(names=("--url",), help="URL with more information"),
    Option(names=("--token-position",), convert=whole,
           help="Token of the subject, from 1, that is the public key of the importing account"),
    Option(names=("--advertise",), convert=bool, negatable=True, help="Advertise it"),
)  # fmt: skip
_IMPORT_OPTIONS = (
    Option(names=("--local",), metavar="SUBJECT", help="Its subject here (default: that of the export)"),
    Option(names=("--share",), convert=bool, negatable=True,
           help="Let a service know the requesting connections"),
    Option(names=("--traceable",), convert=bool, negatable=True, help="Trace messages across the import"),
)  # fmt: skip


def _account(run: CommandRun) -> tuple[IdentityIssuing, str, str]:
    """The store, the operator and the account of a command; a missing account is chosen at a terminal."""
    issuing = issuing_of(run)
    operator = selected_operator(run, issuing.store)
    name = run.values.text("account") or run.choose("account", issuing.store.accounts(operator))
    return issuing, operator, issuing.store.account(operator, name).name


def _kind(claim: ExportClaim | ImportClaim) -> str:
    return str(claim.type).capitalize() if claim.type is not msgspec.UNSET else ""


def _missing(what: str, subject: str, account: str, known: list[str]) -> CommandFailed:
    near = f"; there are {', '.join(known)}" if known else "; there is none"
    return CommandFailed(f"account {account!r} has no {what} {subject!r}{near}")


# --- exports -------------------------------------------------------------------------------------


def _find_export(store: IdentityStore, operator: str, account: str, subject: str) -> ExportClaim:
    exports = store.account(operator, account).claims.nats.exports
    for one in exports:
        if one.subject == subject:
            return one
    raise _missing("export", subject, account, [one.subject for one in exports])


def _export_changes(run: CommandRun) -> dict[str, Any]:
    names = {"description": "description", "url": "info_url", "token-position": "account_token_position",
             "advertise": "advertise"}  # fmt: skip
    return {field: run.values.value(name) for name, field in names.items() if run.values.given(name)}


def _show_export(run: CommandRun, account: str, claim: ExportClaim) -> None:
    if run.output.as_json:
        run.output.json(claim)
        return
    rows: list[tuple[str, object]] = [
        ("Name", claim.name), ("Kind", _kind(claim)), ("Subject", claim.subject),
        ("Account", account), ("Activation Required", claim.token_req),
        ("Account Token Position", claim.account_token_position), ("Advertised", claim.advertise),
    ]  # fmt: skip
    rows += [
        (name, text) for name, text in (("Description", claim.description), ("URL", claim.info_url)) if text
    ]
    run.output.sections(f"Export info for {claim.name} exporting {claim.subject}", [("", rows)])


@EXPORTS.command(
    "add",
    "Export a stream of messages or a service to other accounts.",
    arguments=(Argument(name="name", help="A unique name"), SUBJECT, ACCOUNT),
    options=(SERVICE, *_EXPORT_OPTIONS, OPERATOR, STORE),
    aliases=("new", "a", "n"),
    connects=False,
    examples=("auth account exports add orders 'orders.>' ORDERS",),
)
async def add_export(run: CommandRun) -> None:
    """Add an export and show it."""
    issuing, operator, account = _account(run)
    values, claims = run.values, issuing.store.account(operator, account).claims
    subject = values.text("subject")
    if any(one.subject == subject for one in claims.nats.exports):
        raise CommandFailed(f"account {account!r} has an export {subject!r} already")
    kind: ExportKind = "service" if values.flag("service") else "stream"
    made = ExportClaim(name=values.text("name"), subject=subject, type=kind, **_export_changes(run))
    issuing.edit_account(operator, account, exports=(*claims.nats.exports, made))
    _show_export(run, account, made)


@EXPORTS.command("edit", "Change an export.", arguments=(SUBJECT, ACCOUNT),
                 options=(*_EXPORT_OPTIONS, OPERATOR, STORE), aliases=("update",),
                 connects=False)  # fmt: skip
async def edit_export(run: CommandRun) -> None:
    """Change only what was given."""
    issuing, operator, account = _account(run)
    found = _find_export(issuing.store, operator, account, run.values.text("subject"))
    changes = _export_changes(run)
    if not changes:
        raise CommandFailed("nothing to change was given; see --help")
    made = replace(found, **changes)
    exports = issuing.store.account(operator, account).claims.nats.exports
    kept = tuple(made if one.subject == made.subject else one for one in exports)
    issuing.edit_account(operator, account, exports=kept)
    _show_export(run, account, made)


@EXPORTS.command("info", "Show an export.", arguments=(ANY_SUBJECT, ACCOUNT), options=(OPERATOR, STORE),
                 aliases=("i", "show", "view"), connects=False)  # fmt: skip
async def show_export(run: CommandRun) -> None:
    """Show an export; a missing subject is chosen at a terminal."""
    issuing, operator, account = _account(run)
    exports = issuing.store.account(operator, account).claims.nats.exports
    subject = run.values.text("subject") or run.choose("export", [one.subject for one in exports])
    _show_export(run, account, _find_export(issuing.store, operator, account, subject))


@EXPORTS.command("ls", "List what an account exports.", arguments=(ACCOUNT,),
                 options=(NAMES_ONLY, OPERATOR, STORE), aliases=("list",), connects=False)  # fmt: skip
async def list_exports(run: CommandRun) -> None:
    """List exports."""
    issuing, operator, account = _account(run)
    exports = issuing.store.account(operator, account).claims.nats.exports
    if run.output.as_json:
        run.output.json(list(exports))
        return
    rows = [(one.name, _kind(one), one.subject, one.token_req, one.advertise, one.account_token_position)
            for one in exports]  # fmt: skip
    columns = ("Name", "Kind", "Subject", "Activation Required", "Advertised", "Token Position")
    print_names(run, [one.name for one in exports], columns, rows, f"Exports for account {account}")


@EXPORTS.command("rm", "Remove an export.", arguments=(SUBJECT, ACCOUNT), options=(FORCE, OPERATOR, STORE),
                 connects=False)  # fmt: skip
async def remove_export(run: CommandRun) -> None:
    """Remove an export; imports of it stop working when servers have the new token."""
    issuing, operator, account = _account(run)
    found = _find_export(issuing.store, operator, account, run.values.text("subject"))
    run.confirm(f"Remove export {found.subject} of account {account}?", force=run.values.flag("force"))
    exports = issuing.store.account(operator, account).claims.nats.exports
    issuing.edit_account(
        operator, account, exports=tuple(one for one in exports if one.subject != found.subject)
    )
    print_removed(run, "export", found.subject)


# --- imports -------------------------------------------------------------------------------------


def _local(claim: ImportClaim) -> str:
    """The subject of an import in the importing account."""
    return claim.local_subject or claim.to or claim.subject


def _find_import(store: IdentityStore, operator: str, account: str, subject: str) -> ImportClaim:
    imports = store.account(operator, account).claims.nats.imports
    for one in imports:
        if _local(one) == subject:
            return one
    raise _missing("import", subject, account, [_local(one) for one in imports])


def _source(run: CommandRun, store: IdentityStore, operator: str) -> str:
    """The public key of the exporting account, which --source gives or names."""
    given = run.values.text("source") or run.choose("source account", store.accounts(operator))
    return given if is_public(given) else store.account(operator, given).subject


def _name_of(store: IdentityStore, operator: str, key: str) -> str:
    """The name of an account of the operator by its public key, or the key."""
    names = (name for name in store.accounts(operator) if store.account(operator, name).subject == key)
    return next(names, key)


def _show_import(run: CommandRun, store: IdentityStore, operator: str, claim: ImportClaim) -> None:
    if run.output.as_json:
        run.output.json(claim)
        return
    rows: list[tuple[str, object]] = [
        ("Name", claim.name), ("From Account", _name_of(store, operator, claim.account)),
        ("Kind", _kind(claim)), ("Subject", claim.subject), ("Local Subject", _local(claim)),
        ("Sharing Connection Info", claim.share), ("Allows Message Tracing", claim.allow_trace),
    ]  # fmt: skip
    run.output.sections(f"Import info for {claim.name} importing {claim.subject}", [("", rows)])


@IMPORTS.command(
    "add",
    "Import a stream of messages or a service of another account.",
    arguments=(Argument(name="name", help="A unique name"), Argument(name="subject", help="Subject of the "
               "export, or a part of it"), ACCOUNT),
    options=(
        Option(names=("--source",), metavar="ACCOUNT",
               help="The exporting account: its public key, or its name if it has the same operator"),
        SERVICE,
        *_IMPORT_OPTIONS,
        OPERATOR,
        STORE,
    ),
    aliases=("new", "a", "n"),
    connects=False,
    examples=("auth account imports add orders 'orders.>' BILLING --source ORDERS",),
)  # fmt: skip
async def add_import(run: CommandRun) -> None:
    """Add an import and show it."""
    issuing, operator, account = _account(run)
    values = run.values
    made = ImportClaim(
        name=values.text("name"),
        subject=values.text("subject"),
        account=_source(run, issuing.store, operator),
        local_subject=values.text("local") or values.text("subject"),
        type="service" if values.flag("service") else "stream",
        share=values.flag("share"),
        allow_trace=values.flag("traceable"),
    )
    imports = issuing.store.account(operator, account).claims.nats.imports
    if any(_local(one) == _local(made) for one in imports):
        raise CommandFailed(f"account {account!r} has an import to {_local(made)!r} already; see --local")
    issuing.edit_account(operator, account, imports=(*imports, made))
    _show_import(run, issuing.store, operator, made)


@IMPORTS.command("edit", "Change an import.", arguments=(LOCAL_SUBJECT, ACCOUNT),
                 options=(*_IMPORT_OPTIONS, OPERATOR, STORE), aliases=("update",),
                 connects=False)  # fmt: skip
async def edit_import(run: CommandRun) -> None:
    """Change only what was given."""
    issuing, operator, account = _account(run)
    found = _find_import(issuing.store, operator, account, run.values.text("subject"))
    names = {"local": "local_subject", "share": "share", "traceable": "allow_trace"}
    changes = {field: run.values.value(name) for name, field in names.items() if run.values.given(name)}
    if not changes:
        raise CommandFailed("nothing to change was given; see --help")
    if "local_subject" in changes:
        changes["to"] = ""
    made = replace(found, **changes)
    imports = issuing.store.account(operator, account).claims.nats.imports
    kept = tuple(made if _local(one) == _local(found) else one for one in imports)
    issuing.edit_account(operator, account, imports=kept)
    _show_import(run, issuing.store, operator, made)


@IMPORTS.command("info", "Show an import.", arguments=(
    Argument(name="subject", help="Its subject in the importing account", required=False), ACCOUNT),
    options=(OPERATOR, STORE), aliases=("i", "show", "view"), connects=False)  # fmt: skip
async def show_import(run: CommandRun) -> None:
    """Show an import; a missing subject is chosen at a terminal."""
    issuing, operator, account = _account(run)
    imports = issuing.store.account(operator, account).claims.nats.imports
    subject = run.values.text("subject") or run.choose("import", [_local(one) for one in imports])
    _show_import(run, issuing.store, operator, _find_import(issuing.store, operator, account, subject))


@IMPORTS.command("ls", "List what an account imports.", arguments=(ACCOUNT,),
                 options=(NAMES_ONLY, OPERATOR, STORE), aliases=("list",), connects=False)  # fmt: skip
async def list_imports(run: CommandRun) -> None:
    """List imports."""
    issuing, operator, account = _account(run)
    store = issuing.store
    imports = store.account(operator, account).claims.nats.imports
    if run.output.as_json:
        run.output.json(list(imports))
        return
    rows = [(one.name, _name_of(store, operator, one.account), _kind(one), one.subject, _local(one),
             one.allow_trace, one.share) for one in imports]  # fmt: skip
    columns = ("Name", "Source", "Kind", "Subject", "Local Subject", "Allows Tracing", "Sharing Info")
    print_names(run, [one.name for one in imports], columns, rows, f"Imports for account {account}")


@IMPORTS.command("rm", "Remove an import.", arguments=(LOCAL_SUBJECT, ACCOUNT),
                 options=(FORCE, OPERATOR, STORE), connects=False)  # fmt: skip
async def remove_import(run: CommandRun) -> None:
    """Remove an import."""
    issuing, operator, account = _account(run)
    found = _find_import(issuing.store, operator, account, run.values.text("subject"))
    run.confirm(f"Remove import {_local(found)} of account {account}?", force=run.values.flag("force"))
    imports = issuing.store.account(operator, account).claims.nats.imports
    kept = tuple(one for one in imports if _local(one) != _local(found))
    issuing.edit_account(operator, account, imports=kept)
    print_removed(run, "import", _local(found))
