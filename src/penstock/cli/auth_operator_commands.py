"""`penstock auth operator`: operators, who sign accounts and whom servers trust."""

from __future__ import annotations

from penstock.cli.auth_selection import (
    NAMES_ONLY,
    STORE,
    TAGS,
    claims_json,
    claims_rows,
    issuing_of,
    print_names,
    print_removed,
    select_operator,
    selected_operator,
)
from penstock.cli.bucket_options import FORCE
from penstock.cli.framework.command_run import CommandFailed, CommandRun
from penstock.cli.framework.command_table import Argument, CommandGroup, Option
from penstock.cli.framework.value_kinds import path
from penstock.cli.identities.identity_store import IdentityStore
from penstock.cli.private_files import write_private

OPERATORS = CommandGroup("operator", "Manage operators.", aliases=("o", "op"))
NAME = Argument(name="name", help="Name of the operator")
ANY_NAME = Argument(
    name="name", help="Name of the operator (default: the selected or only one)", required=False
)
SERVICE = Option(names=("--service",), repeated=True, metavar="URL", help="URL of the operator's servers")
ACCOUNT_SERVER = Option(names=("--account-server",), metavar="URL", help="URL of the account server")


@OPERATORS.command(
    "add",
    "Create an operator with a system account.",
    arguments=(NAME,),
    options=(
        Option(names=("--signing-key",), convert=bool, help="Also create a signing key"),
        SERVICE,
        ACCOUNT_SERVER,
        TAGS,
        STORE,
    ),
    aliases=("new", "create"),
    connects=False,
    examples=("auth operator add ACME --signing-key",),
)
async def add(run: CommandRun) -> None:
    """Create an operator and show it."""
    values, issuing = run.values, issuing_of(run)
    issuing.add_operator(
        values.text("name"),
        signing_key=values.flag("signing-key"),
        account_server=values.text("account-server"),
        services=values.texts("service"),
        tags=values.texts("tags"),
    )
    _show(run, issuing.store, values.text("name"))


@OPERATORS.command(
    "edit",
    "Change an operator.",
    arguments=(ANY_NAME,),
    options=(SERVICE, ACCOUNT_SERVER, TAGS, STORE),
    aliases=("update",),
    connects=False,
)
async def edit(run: CommandRun) -> None:
    """Change only what was given."""
    values, issuing = run.values, issuing_of(run)
    name = selected_operator(run, issuing.store, "name")
    changes: dict[str, object] = {}
    if values.given("service"):
        changes["operator_service_urls"] = tuple(values.texts("service"))
    if values.given("account-server"):
        changes["account_server_url"] = values.text("account-server")
    if values.given("tags"):
        changes["tags"] = tuple(tag.lower() for tag in values.texts("tags"))
    if not changes:
        raise CommandFailed("nothing to change was given; see --help")
    issuing.edit_operator(name, **changes)
    _show(run, issuing.store, name)


@OPERATORS.command(
    "info", "Show an operator.", arguments=(ANY_NAME,), options=(STORE,),
    aliases=("i", "show", "view"), connects=False,
)  # fmt: skip
async def info(run: CommandRun) -> None:
    """Show an operator."""
    store = issuing_of(run).store
    _show(run, store, selected_operator(run, store, "name"))


def _show(run: CommandRun, store: IdentityStore, name: str) -> None:
    found = store.operator(name)
    if run.output.as_json:
        run.output.json(claims_json(found.claims))
        return
    fields = found.claims.nats
    rows = claims_rows(found.claims)
    rows += [("Accounts", len(store.accounts(name))),
             ("Service URL", "\n".join(fields.operator_service_urls)),
             ("Account Server", fields.account_server_url), ("System Account", fields.system_account),
             ("Tags", ", ".join(fields.tags)), ("Signing Keys", "\n".join(fields.signing_keys)),
             ("Key is here", "yes" if store.has_key(found.subject) else "no")]  # fmt: skip
    run.output.sections(f"Operator {name} ({found.subject})", [("", [row for row in rows if row[1] != ""])])


@OPERATORS.command(
    "list", "List the operators.", options=(NAMES_ONLY, STORE), aliases=("ls",), connects=False
)
async def list_all(run: CommandRun) -> None:
    """List the operators."""
    store = issuing_of(run).store
    names = store.operators()
    rows = [(name, store.operator(name).subject, len(store.accounts(name))) for name in names]
    print_names(run, names, ("Name", "Subject", "Accounts"), rows, "Operators")


@OPERATORS.command("select", "Select the operator of commands that name none.", arguments=(NAME,),
                   options=(STORE,), connects=False)  # fmt: skip
async def select(run: CommandRun) -> None:
    """Select an operator, for both command lines."""
    store, name = issuing_of(run).store, run.values.text("name")
    store.operator(name)
    select_operator(run, name)
    run.output.note(f"Selected operator {name}")


@OPERATORS.command(
    "config",
    "Write a server configuration that trusts an operator, with the tokens of its accounts.",
    arguments=(ANY_NAME,),
    options=(
        Option(names=("--output", "-O"), convert=path, help="File to write (default: stdout)"),
        Option(
            names=("--resolver-dir",),
            metavar="DIR",
            help="Let servers keep tokens in this directory, so that accounts can be pushed to them",
        ),
        STORE,
    ),
    connects=False,
    examples=("auth operator config ACME --output acme.conf",),
)
async def config(run: CommandRun) -> None:
    """Print or write the configuration."""
    issuing = issuing_of(run)
    text = issuing.server_config(
        selected_operator(run, issuing.store, "name"), resolver_dir=run.values.text("resolver-dir")
    )
    target = run.values.path("output")
    if target is None:
        run.output.raw(text.encode())
    else:
        write_private(target.absolute(), text)
        run.output.note(f"Wrote {target}")


# --- signing keys ----------------------------------------------------------------------------------

KEYS = OPERATORS.group("keys", "Manage signing keys of operators.", aliases=("sk", "s"))


@KEYS.command("add", "Create a signing key.", arguments=(ANY_NAME,), options=(STORE,),
              aliases=("new", "create"), connects=False)  # fmt: skip
async def add_key(run: CommandRun) -> None:
    """Create a signing key and print its public key."""
    issuing = issuing_of(run)
    public = issuing.add_operator_key(selected_operator(run, issuing.store, "name"))
    if run.output.as_json:
        run.output.json({"key": public})
    else:
        run.output.line(public)


@KEYS.command("list", "List signing keys.", arguments=(ANY_NAME,), options=(STORE, NAMES_ONLY),
              aliases=("ls",), connects=False)  # fmt: skip
async def list_keys(run: CommandRun) -> None:
    """List public keys of signing keys."""
    store = issuing_of(run).store
    keys = [*store.operator(selected_operator(run, store, "name")).claims.nats.signing_keys]
    rows = [(key, "yes" if store.has_key(key) else "no") for key in keys]
    print_names(run, keys, ("Key", "Here"), rows, "Signing Keys")


@KEYS.command("rm", "Remove a signing key.", arguments=(NAME, Argument(name="key", help="Its public key")),
              options=(FORCE, STORE), aliases=("delete",), connects=False)  # fmt: skip
async def remove_key(run: CommandRun) -> None:
    """Remove a signing key; what it signed is no longer trusted."""
    name, key = run.values.text("name"), run.values.text("key")
    question = f"Remove signing key {key} of operator {name}? Servers no longer trust what it signed."
    run.confirm(question, force=run.values.flag("force"))
    issuing_of(run).remove_operator_key(name, key)
    print_removed(run, "key", key)
