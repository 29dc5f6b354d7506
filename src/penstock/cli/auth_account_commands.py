"""`penstock auth account`: accounts of operators, their limits and signing keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from penstock.cli.auth_selection import (
    ACCOUNT_NAME,
    EXPIRY,
    NAMES_ONLY,
    OPERATOR,
    STORE,
    TAGS,
    claims_json,
    claims_rows,
    expiry_of,
    issuing_of,
    print_names,
    print_removed,
    selected_operator,
)
from penstock.cli.bucket_options import FORCE
from penstock.cli.framework.command_run import CommandFailed, CommandRun
from penstock.cli.framework.command_table import Argument, CommandGroup, Option
from penstock.cli.framework.value_kinds import path, size, whole
from penstock.cli.identities.identity_limits import ACCOUNT_FLAGS, account_limits, user_changes
from penstock.cli.identities.identity_store import IdentityStore
from penstock.cli.private_files import write_private
from penstock.cli.reports.system_requests import decode_page
from penstock.protocol.claims import NO_LIMIT, UNLIMITED, OperatorLimits, TemplateClaim, UserFields
from penstock.protocol.jwt import decode_account, parse_token

ACCOUNTS = CommandGroup("account", "Manage accounts.", aliases=("a", "acct", "act"))
_SIZES = ("payload", "js_disk", "js_memory", "js_disk_stream", "js_memory_stream")
_HELP = {
    "connections": "Most client connections",
    "subscriptions": "Most subscriptions",
    "payload": "Largest message",
    "exports": "Most exports",
    "imports": "Most imports",
    "leafnodes": "Most leaf nodes",
    "js_streams": "Most streams",
    "js_consumers": "Most consumers",
    "js_disk": "Most bytes in file storage",
    "js_memory": "Most bytes in memory storage",
    "js_disk_stream": "Most bytes of a stream in file storage",
    "js_memory_stream": "Most bytes of a stream in memory storage",
    "js_max_pending": "Most messages of a consumer that wait for acks",
}
LIMITS = (
    *(
        Option(names=(f"--{flag.replace('_', '-')}",), convert=size if flag in _SIZES else whole,
               help=f"{text}, -1 = no limit")
        for flag, text in _HELP.items()
    ),
    Option(names=("--js-stream-size-required",), convert=bool, negatable=True,
           help="Streams must have a maximum size"),
    Option(names=("--jetstream",), convert=bool, negatable=True, help="Enable JetStream"),
    Option(names=("--bearer",), convert=bool, negatable=True, help="Allow bearer tokens"),
    EXPIRY,
    TAGS,
)  # fmt: skip


def _changes(run: CommandRun, limits: OperatorLimits) -> dict[str, Any]:
    """Fields of AccountFields that the options change."""
    values = run.values
    flags: dict[str, int | bool | None] = {
        flag: values.value(flag.replace("_", "-")) for flag in ACCOUNT_FLAGS
    }
    made = account_limits(limits, flags, jetstream=values.value("jetstream"), bearer=values.value("bearer"))
    changes: dict[str, Any] = {"limits": made} if made != limits else {}
    if values.given("tags"):
        changes["tags"] = tuple(tag.lower() for tag in values.texts("tags"))
    return changes


@ACCOUNTS.command(
    "add",
    "Create an account, without limits and without JetStream unless options say otherwise.",
    arguments=(ACCOUNT_NAME,),
    options=(
        *LIMITS,
        Option(names=("--key",), help="Public key of the operator that signs"),
        OPERATOR,
        STORE,
    ),
    aliases=("create", "new"),
    connects=False,
    examples=("auth account add ORDERS --jetstream --js-disk 10GB",),
)
async def add(run: CommandRun) -> None:
    """Create an account and show it."""
    issuing, name = issuing_of(run), run.values.text("account")
    operator = selected_operator(run, issuing.store)
    changes = _changes(run, UNLIMITED)
    expires_s = expiry_of(run) or 0
    issuing.add_account(operator, name, key=run.values.text("key"), expires_s=expires_s, **changes)
    _show(run, issuing.store, operator, name)


@ACCOUNTS.command("edit", "Change limits of an account.", arguments=(ACCOUNT_NAME,),
                  options=(*LIMITS, OPERATOR, STORE), aliases=("update",), connects=False)  # fmt: skip
async def edit(run: CommandRun) -> None:
    """Change only what was given."""
    issuing, name = issuing_of(run), run.values.text("account")
    operator = selected_operator(run, issuing.store)
    changes = _changes(run, issuing.store.account(operator, name).claims.nats.limits)
    expires_s = expiry_of(run)
    if not changes and expires_s is None:
        raise CommandFailed("nothing to change was given; see --help")
    issuing.edit_account(operator, name, expires_s=expires_s, **changes)
    _show(run, issuing.store, operator, name)


@ACCOUNTS.command("info", "Show an account.", arguments=(ACCOUNT_NAME,), options=(OPERATOR, STORE),
                  aliases=("i", "show", "view"), connects=False)  # fmt: skip
async def info(run: CommandRun) -> None:
    """Show an account."""
    store = issuing_of(run).store
    _show(run, store, selected_operator(run, store), run.values.text("account"))


def _show(run: CommandRun, store: IdentityStore, operator: str, name: str) -> None:
    found = store.account(operator, name)
    if run.output.as_json:
        run.output.json(claims_json(found.claims))
        return
    fields = found.claims.nats
    limits = [(key.replace("_", " ").capitalize(), _limit(value))
              for key, value in msgspec.structs.asdict(fields.limits).items()
              if value not in ({}, False)]  # fmt: skip
    keys = [(scope.role if scope is not None else "unscoped", key) for key, scope in fields.scopes.items()]
    rows = [*claims_rows(found.claims), ("Operator", operator), ("Users", len(store.users(operator, name))),
            ("JetStream", "yes" if fields.limits.has_jetstream else "no"), ("Tags", ", ".join(fields.tags)),
            ("Key is here", "yes" if store.has_key(found.subject) else "no")]  # fmt: skip
    sections = (("", [row for row in rows if row[1] != ""]), ("Limits", limits), ("Signing Keys", keys))
    run.output.sections(f"Account {name} ({found.subject})", sections)


def _limit(value: object) -> object:
    return "unlimited" if value == NO_LIMIT else value


@ACCOUNTS.command("ls", "List the accounts of an operator.", options=(NAMES_ONLY, OPERATOR, STORE),
                  aliases=("list",), connects=False)  # fmt: skip
async def list_all(run: CommandRun) -> None:
    """List accounts."""
    store = issuing_of(run).store
    operator = selected_operator(run, store)
    names = store.accounts(operator)
    found = [store.account(operator, name) for name in names]
    rows = [
        (one.name, one.subject, len(store.users(operator, one.name)),
         "yes" if one.claims.nats.limits.has_jetstream else "no")
        for one in found
    ]  # fmt: skip
    print_names(run, names, ("Name", "Subject", "Users", "JetStream"), rows, "Accounts")


@ACCOUNTS.command("rm", "Remove an account with its users and keys.", arguments=(ACCOUNT_NAME,),
                  options=(FORCE, OPERATOR, STORE), connects=False)  # fmt: skip
async def remove(run: CommandRun) -> None:
    """Remove an account from the store; servers that have its token keep it."""
    store, name = issuing_of(run).store, run.values.text("account")
    operator = selected_operator(run, store)
    store.account(operator, name)
    run.confirm(f"Remove account {name} with its users and keys?", force=run.values.flag("force"))
    store.remove_account(operator, name)
    print_removed(run, "account", name)


@ACCOUNTS.command("push", "Give servers with a resolver the token of an account.", arguments=(ACCOUNT_NAME,),
                  options=(OPERATOR, STORE))  # fmt: skip
async def push(run: CommandRun) -> None:
    """Send the token. Needs a user of the system account."""
    store, name = issuing_of(run).store, run.values.text("account")
    found = store.account(selected_operator(run, store), name)
    async with run.connect() as client:
        answer = await client.request("$SYS.REQ.CLAIMS.UPDATE", found.token.encode())
    page = decode_page(answer.data)
    if page.get("error"):
        raise CommandFailed(f"the server refused account {name}: {page['error'].get('description')}")
    if run.output.as_json:
        run.output.json(page)
    else:
        server = page.get("server", {}).get("name", "a server")
        run.output.line(f"Server {server} has the token of account {name}")


@ACCOUNTS.command(
    "query", "Show the token of an account that servers have.", arguments=(
        ACCOUNT_NAME,
        Argument(name="output", help="File to write the token to", required=False, convert=path),
    ), options=(OPERATOR, STORE), aliases=("pull",),
)  # fmt: skip
async def query(run: CommandRun) -> None:
    """Ask a server for an account, by its name here or its public key. Needs a user of the system account."""
    store, name = issuing_of(run).store, run.values.text("account")
    public = name
    if not name.startswith("A") or len(name) != 56:
        public = store.account(selected_operator(run, store), name).subject
    async with run.connect() as client:
        answer = await client.request(f"$SYS.REQ.ACCOUNT.{public}.CLAIMS.LOOKUP")
    if not answer.data:
        raise CommandFailed(f"the servers do not have account {name}")
    token = answer.data.decode()
    target = run.values.path("output")
    if target is not None:
        _write_token(target, token)
    run.output.json(claims_json(decode_account(parse_token(token))))


def _write_token(target: Path, token: str) -> None:
    write_private(target.absolute(), token)


# --- signing keys ----------------------------------------------------------------------------------

KEYS = ACCOUNTS.group("keys", "Manage signing keys of accounts.", aliases=("sk", "s"))


def permission_options() -> tuple[Option, ...]:
    """Permissions and limits of users and of scoped keys."""
    lists = ("pub-allow", "pub-deny", "sub-allow", "sub-deny")
    texts = {"pub": "publishing to", "sub": "subscribing to"}
    return (
        Option(names=("--payload",), convert=size, help="Largest message, -1 = no limit"),
        Option(names=("--subscriptions",), convert=whole, help="Most subscriptions, -1 = no limit"),
        Option(names=("--data",), convert=size, help="Most bytes, -1 = no limit"),
        Option(names=("--bearer",), convert=bool, negatable=True, help="Allow bearer tokens"),
        Option(names=("--locale",), metavar="ZONE", help="Time zone of the times of the user"),
        *(
            Option(names=(f"--{name}",), repeated=True, commas=True, metavar="SUBJECT",
                   help=f"{name[4:].capitalize()} {texts[name[:3]]} these subjects")
            for name in lists
        ),
    )  # fmt: skip


def permission_changes(run: CommandRun, fields: UserFields) -> dict[str, Any]:
    """Changes of UserFields by the options of `permission_options`."""
    names = ("payload", "subscriptions", "data", "bearer", "locale", "pub-allow", "pub-deny", "sub-allow",
             "sub-deny")  # fmt: skip
    given = {name.replace("-", "_"): run.values.value(name) for name in names if run.values.given(name)}
    return user_changes(fields, **given)


@KEYS.command(
    "add",
    "Create a signing key of an account; with a role, all users that it signs get its limits.",
    arguments=(ACCOUNT_NAME, Argument(name="role", help="Role of the key", required=False)),
    options=(
        Option(names=("--unscoped",), convert=bool, help="Create a key without limits"),
        Option(names=("--description",), metavar="TEXT", help="What the key is for"),
        *permission_options(),
        OPERATOR,
        STORE,
    ),
    aliases=("new", "a", "n"),
    connects=False,
    examples=("auth account keys add ORDERS reader --sub-allow 'orders.>' --pub-deny '>'",),
)
async def add_key(run: CommandRun) -> None:
    """Create a signing key and print its public key."""
    values, issuing = run.values, issuing_of(run)
    role = values.text("role")
    if bool(role) == values.flag("unscoped"):
        raise CommandFailed("give either a role or --unscoped")
    changes = permission_changes(run, UserFields())
    template = TemplateClaim(**changes) if role else None
    operator = selected_operator(run, issuing.store)
    description = values.text("description")
    public = issuing.add_account_key(operator, values.text("account"), role, template, description)
    if run.output.as_json:
        run.output.json({"key": public, "role": role})
    else:
        run.output.line(public)


@KEYS.command("ls", "List signing keys of an account.", arguments=(ACCOUNT_NAME,),
              options=(NAMES_ONLY, OPERATOR, STORE), aliases=("list",), connects=False)  # fmt: skip
async def list_keys(run: CommandRun) -> None:
    """List signing keys with their roles."""
    store = issuing_of(run).store
    scopes = store.account(selected_operator(run, store), run.values.text("account")).claims.nats.scopes
    rows = [(key, scope.role if scope is not None else "", "yes" if store.has_key(key) else "no")
            for key, scope in scopes.items()]  # fmt: skip
    print_names(run, list(scopes), ("Key", "Role", "Here"), rows, "Signing Keys")


@KEYS.command("rm", "Remove a signing key of an account.", arguments=(
    ACCOUNT_NAME, Argument(name="key", help="Its public key or role")),
    options=(FORCE, OPERATOR, STORE), connects=False)  # fmt: skip
async def remove_key(run: CommandRun) -> None:
    """Remove a signing key; users that it signed can no longer log in."""
    issuing, account, key = issuing_of(run), run.values.text("account"), run.values.text("key")
    question = f"Remove signing key {key} of account {account}? Users that it signed can no longer log in."
    run.confirm(question, force=run.values.flag("force"))
    issuing.remove_account_key(selected_operator(run, issuing.store), account, key)
    print_removed(run, "key", key)
