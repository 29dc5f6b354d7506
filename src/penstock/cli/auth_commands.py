"""`penstock auth`: operators, accounts, users and nkeys, in the files of the official tools."""

from __future__ import annotations

import base64
import os
from dataclasses import replace
from pathlib import Path

from penstock.cli.auth_account_commands import ACCOUNTS, permission_changes, permission_options
from penstock.cli.auth_operator_commands import OPERATORS
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
from penstock.cli.auth_sharing_commands import EXPORTS, IMPORTS
from penstock.cli.bucket_options import FORCE
from penstock.cli.framework.command_run import CommandFailed, CommandRun
from penstock.cli.framework.command_table import Argument, Command, CommandGroup, Option
from penstock.cli.framework.value_kinds import existing_file, path
from penstock.cli.identities.identity_issuing import IdentityIssuing, public_of, read_key
from penstock.cli.identities.identity_store import IdentityStore
from penstock.cli.private_files import write_private
from penstock.protocol.claims import UserFields
from penstock.protocol.curvekeys import NONCE_BYTES, CurveKey
from penstock.protocol.jwt import decode, parse_token
from penstock.protocol.nkeys import KEY_BYTES, KeyPair, Prefix, encode_seed, verify

AUTH = CommandGroup("auth", "Manage operators, accounts, users, nkeys and credentials.")
USERS = CommandGroup("user", "Manage users of accounts.", aliases=("u", "usr", "users"))
NKEYS = CommandGroup("nkey", "Create and use nkeys.", aliases=("nk",))
ACCOUNTS.add(EXPORTS)
ACCOUNTS.add(IMPORTS)
for group in (OPERATORS, ACCOUNTS, USERS, NKEYS):
    AUTH.add(group)

# --- users -----------------------------------------------------------------------------------------

NAME = Argument(name="name", help="Name of the user")
CREDENTIAL = Option(names=("--credential",), convert=path, help="Write a credentials file")


@USERS.command(
    "add",
    "Create a user.",
    arguments=(NAME, ACCOUNT_NAME),
    options=(
        Option(names=("--key",), help="Role or public key of the account's key that signs"),
        CREDENTIAL, *permission_options(), EXPIRY, TAGS, FORCE, OPERATOR, STORE,
    ),
    aliases=("create", "new"),
    connects=False,
    examples=("auth user add bob ORDERS --pub-allow 'orders.>' --credential bob.creds",),
)  # fmt: skip
async def add_user(run: CommandRun) -> None:
    """Create a user and show it."""
    values, issuing = run.values, issuing_of(run)
    operator, account, name = (
        selected_operator(run, issuing.store),
        values.text("account"),
        values.text("name"),
    )
    changes = permission_changes(run, UserFields())
    if values.given("tags"):
        changes["tags"] = tuple(tag.lower() for tag in values.texts("tags"))
    expires_s = expiry_of(run) or 0
    issuing.add_user(operator, account, name, key=values.text("key"), expires_s=expires_s, **changes)
    _write_credential(run, issuing, operator, account, name)
    _show_user(run, issuing.store, operator, account, name)


def _write_credential(
    run: CommandRun, issuing: IdentityIssuing, operator: str, account: str, name: str
) -> None:
    target = run.values.path("credential")
    if target is not None:
        _write_new(run, target, issuing.credentials(operator, account, name))


def _write_new(run: CommandRun, target: Path, text: str) -> None:
    """Write a private file; an existing one only with --force. Raises CommandFailed."""
    if target.exists() and not run.values.flag("force"):
        raise CommandFailed(f"{target} exists already; give --force to replace it")
    write_private(target.absolute(), text)
    run.output.note(f"Wrote {target}")


@USERS.command("edit", "Change permissions and limits of a user.", arguments=(NAME, ACCOUNT_NAME),
               options=(CREDENTIAL, *permission_options(), EXPIRY, TAGS, FORCE, OPERATOR, STORE),
               aliases=("update",), connects=False)  # fmt: skip
async def edit_user(run: CommandRun) -> None:
    """Change only what was given. Clients use it once they have the new credentials."""
    values, issuing = run.values, issuing_of(run)
    operator, account, name = (
        selected_operator(run, issuing.store),
        values.text("account"),
        values.text("name"),
    )
    changes = permission_changes(run, issuing.store.user(operator, account, name).claims.nats)
    if values.given("tags"):
        changes["tags"] = tuple(tag.lower() for tag in values.texts("tags"))
    expires_s = expiry_of(run)
    if not changes and expires_s is None:
        raise CommandFailed("nothing to change was given; see --help")
    issuing.edit_user(operator, account, name, expires_s=expires_s, **changes)
    _write_credential(run, issuing, operator, account, name)
    _show_user(run, issuing.store, operator, account, name)


@USERS.command("info", "Show a user.", arguments=(NAME, ACCOUNT_NAME), options=(OPERATOR, STORE),
               aliases=("i", "show", "view"), connects=False)  # fmt: skip
async def user_info(run: CommandRun) -> None:
    """Show a user."""
    store = issuing_of(run).store
    operator = selected_operator(run, store)
    _show_user(run, store, operator, run.values.text("account"), run.values.text("name"))


def _show_user(run: CommandRun, store: IdentityStore, operator: str, account: str, name: str) -> None:
    found = store.user(operator, account, name)
    if run.output.as_json:
        run.output.json(claims_json(found.claims))
        return
    fields = found.claims.nats
    scope = store.account(operator, account).claims.nats.scopes.get(found.claims.issuer)
    rows = [*claims_rows(found.claims), ("Account", account), ("Role", scope.role if scope else ""),
            ("Bearer token", "yes" if fields.bearer_token else "no"), ("Tags", ", ".join(fields.tags)),
            ("Key is here", "yes" if store.has_key(found.subject) else "no")]  # fmt: skip
    limits = [(title, "unlimited" if value < 0 else value)
              for title, value in (("Payload", fields.payload), ("Subscriptions", fields.subs))]  # fmt: skip
    permissions = [
        (f"{title} {kind}", "\n".join(getattr(part, kind)))
        for title, part in (("Publish", fields.pub), ("Subscribe", fields.sub))
        for kind in ("allow", "deny")
        if getattr(part, kind)
    ]
    sections = (("", [row for row in rows if row[1] != ""]), ("Limits", [] if scope else limits),
                ("Permissions", permissions))  # fmt: skip
    run.output.sections(f"User {name} ({found.subject})", sections)


@USERS.command("ls", "List the users of an account.", arguments=(ACCOUNT_NAME,),
               options=(NAMES_ONLY, OPERATOR, STORE), aliases=("list",), connects=False)  # fmt: skip
async def list_users(run: CommandRun) -> None:
    """List users."""
    store, account = issuing_of(run).store, run.values.text("account")
    operator = selected_operator(run, store)
    store.account(operator, account)
    names = store.users(operator, account)
    rows = [(name, store.user(operator, account, name).subject) for name in names]
    print_names(run, names, ("Name", "Subject"), rows, "Users")


@USERS.command("rm", "Remove a user.", arguments=(NAME, ACCOUNT_NAME), options=(
    Option(names=("--revoke",), convert=bool, help="Also revoke its tokens, in the account's token"),
    FORCE, OPERATOR, STORE), connects=False)  # fmt: skip
async def remove_user(run: CommandRun) -> None:
    """Remove a user from the store; without --revoke its credentials stay valid."""
    values, issuing = run.values, issuing_of(run)
    operator, account, name = (
        selected_operator(run, issuing.store),
        values.text("account"),
        values.text("name"),
    )
    found = issuing.store.user(operator, account, name)
    run.confirm(f"Remove user {name} of account {account}?", force=values.flag("force"))
    if values.flag("revoke"):
        issuing.revoke(operator, account, found.subject)
        run.output.note(f"Give servers the revocation by `penstock auth account push {account}`")
    issuing.store.remove_user(operator, account, name)
    print_removed(run, "user", name)


@USERS.command(
    "credential",
    "Write the credentials file of a user.",
    arguments=(Argument(name="file", help="The file to write", convert=path), NAME, ACCOUNT_NAME),
    options=(EXPIRY, FORCE, OPERATOR, STORE),
    aliases=("cred", "creds"),
    connects=False,
    examples=("auth user credential bob.creds bob ORDERS --expire 30d",),
)
async def credential(run: CommandRun) -> None:
    """Write a credentials file, with an expiry of its own if asked for."""
    values, issuing = run.values, issuing_of(run)
    operator = selected_operator(run, issuing.store)
    names = values.text("account"), values.text("name")
    text = issuing.credentials(operator, *names, expires_s=expiry_of(run) or 0)
    _write_new(run, Path(values.text("file")), text)


# --- nkeys -----------------------------------------------------------------------------------------

_PREFIXES = {
    "user": Prefix.USER,
    "account": Prefix.ACCOUNT,
    "operator": Prefix.OPERATOR,
    "server": Prefix.SERVER,
    "cluster": Prefix.CLUSTER,
    "curve": Prefix.CURVE,
    "x25519": Prefix.CURVE,
}
KEY_FILE = Argument(name="key", help="File with the seed", convert=existing_file)
FILE = Argument(name="file", help="The file", convert=existing_file)
OUTPUT = Option(names=("--output",), convert=path, help="File to write (default: stdout)")
BASE64 = Option(names=("--b64",), convert=bool, negatable=True, default=True, help="Data are base64")


@NKEYS.command(
    "gen",
    "Create a key pair; prints its seed, which is secret.",
    arguments=(Argument(name="type", help="Type of the key", choices=tuple(_PREFIXES)),),
    options=(
        Option(names=("--public",), convert=bool, help="Print the public key as well"),
        Option(names=("--output",), convert=path, help="Write the seed to a file"),
        FORCE,
    ),
    connects=False,
)
async def generate(run: CommandRun) -> None:
    """Create a key."""
    prefix = _PREFIXES[run.values.text("type")]
    secret = os.urandom(KEY_BYTES)
    seed = encode_seed(prefix, secret)
    public = CurveKey(seed).public if prefix is Prefix.CURVE else KeyPair(seed).public
    target = run.values.path("output")
    if target is not None:
        _write_new(run, target, seed + "\n")
    if run.output.as_json:
        run.output.json({"public": public} | ({} if target else {"seed": seed}))
        return
    if target is None:
        run.output.line(seed)
    if run.values.flag("public") or target is not None:
        run.output.line(public)


@NKEYS.command("show", "Show the public key of a seed.", arguments=(KEY_FILE,), connects=False)
async def show(run: CommandRun) -> None:
    """Print the public key."""
    text = _text(run, "key")
    public = _curve(text).public if _is_curve(text) else public_of(text)
    if run.output.as_json:
        run.output.json({"public": public})
    else:
        run.output.line(public)


def _text(run: CommandRun, name: str) -> str:
    return Path(run.values.text(name)).read_text(encoding="utf-8", errors="replace")


def _is_curve(text: str) -> bool:
    return any(line.strip().startswith("SX") for line in text.splitlines())


def _curve(text: str) -> CurveKey:
    seeds = [line.strip() for line in text.splitlines() if line.strip().startswith("SX")]
    if not seeds:
        raise CommandFailed("this is no seed of a curve key (SX...); create one by `auth nkey gen curve`")
    return CurveKey(seeds[0])


@NKEYS.command("sign", "Sign a file; prints the signature in base64.", arguments=(FILE, KEY_FILE),
               connects=False)  # fmt: skip
async def sign(run: CommandRun) -> None:
    """Print the signature."""
    data = Path(run.values.text("file")).read_bytes()  # noqa: ASYNC240 -- nothing else runs here
    signature = base64.b64encode(read_key(_text(run, "key")).sign(data)).decode()
    if run.output.as_json:
        run.output.json({"signature": signature})
    else:
        run.output.line(signature)


@NKEYS.command(
    "verify",
    "Check the signature of a file; the exit status is 1 if it is wrong.",
    arguments=(
        FILE,
        Argument(name="signature", help="File with the signature in base64", convert=existing_file),
        Argument(name="key", help="File with the public key or the seed", convert=existing_file),
    ),
    connects=False,
)
async def verify_file(run: CommandRun) -> None:
    """Check a signature."""
    data = Path(run.values.text("file")).read_bytes()  # noqa: ASYNC240 -- nothing else runs here
    text = _text(run, "signature").strip()
    signature = base64.b64decode(text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4))
    if not verify(public_of(_text(run, "key")), data, signature):
        raise CommandFailed("the signature is wrong: another key, or the file was changed")
    run.output.note("The signature is right")


@NKEYS.command("seal", "Encrypt a file for the owner of a curve key.", arguments=(
    FILE, KEY_FILE, Argument(name="recipient", help="Public curve key (X...) of the recipient")),
    options=(OUTPUT, BASE64, FORCE), aliases=("encrypt", "enc"), connects=False)  # fmt: skip
async def seal(run: CommandRun) -> None:
    """Encrypt a file."""
    data = Path(run.values.text("file")).read_bytes()  # noqa: ASYNC240 -- nothing else runs here
    sealed = _curve(_text(run, "key")).seal(data, run.values.text("recipient"), os.urandom(NONCE_BYTES))
    _write_data(run, base64.b64encode(sealed) + b"\n" if run.values.flag("b64") else sealed)


@NKEYS.command("unseal", "Decrypt a file from the owner of a curve key.", arguments=(
    FILE, KEY_FILE, Argument(name="sender", help="Public curve key (X...) of the sender")),
    options=(OUTPUT, BASE64, FORCE), aliases=("open", "decrypt", "dec"), connects=False)  # fmt: skip
async def unseal(run: CommandRun) -> None:
    """Decrypt a file."""
    data = Path(run.values.text("file")).read_bytes()  # noqa: ASYNC240 -- nothing else runs here
    sealed = base64.b64decode(data) if run.values.flag("b64") else data
    _write_data(run, _curve(_text(run, "key")).open(sealed, run.values.text("sender")))


def _write_data(run: CommandRun, data: bytes) -> None:
    target = run.values.path("output")
    if target is None:
        run.output.raw(data)
        return
    if target.exists() and not run.values.flag("force"):
        raise CommandFailed(f"{target} exists already; give --force to replace it")
    target.write_bytes(data)


# --- tokens ----------------------------------------------------------------------------------------


@AUTH.command(
    "decode",
    "Show the claims of a JWT or credentials file, and check its signature.",
    arguments=(Argument(name="jwt-or-file", help="The JWT, or a file that has it"),),
    aliases=("jwt",),
    connects=False,
)
async def decode_token(run: CommandRun) -> None:
    """Print the claims as JSON."""
    text = run.values.text("jwt-or-file")
    if not text.startswith("eyJ"):
        text = _text(run, "jwt-or-file")
    run.output.json(claims_json(decode(parse_token(text))))


JWT = CommandGroup("jwt", "Show the claims of JWTs.")
_DECODE = AUTH.find("decode")
assert isinstance(_DECODE, Command)
JWT.add(replace(_DECODE, aliases=("show", "view")))
