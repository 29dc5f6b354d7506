"""`penstock server passwd`: bcrypt hashes of passwords, for configuration files."""

from __future__ import annotations

import getpass
import secrets
import string

from penstock.cli.framework.command_parser import UsageError
from penstock.cli.framework.command_run import CommandFailed, CommandRun
from penstock.cli.framework.command_table import Command, Option
from penstock.cli.framework.value_kinds import whole
from penstock.errors import MisuseError
from penstock.extras import need

PASSWORD_MIN, PASSWORD_MAX = 10, 72
"""Characters; and bytes, of which bcrypt takes no more."""
GENERATED = 22
COST_MIN, COST_MAX, COST_DEFAULT = 4, 31, 11
_LETTERS = string.ascii_letters + string.digits + "!#%&()*+-:=?@^_~"


async def _passwd(run: CommandRun) -> None:
    need(run.path, "server")
    import bcrypt

    values, cost = run.values, run.values.number("cost")
    if not COST_MIN <= cost <= COST_MAX:
        raise MisuseError(f"--cost is {cost}; it is {COST_MIN} to {COST_MAX}, and each step doubles the time")
    generated = values.flag("generate")
    if generated and run.values.given("pass"):
        raise UsageError("--pass and --generate are both given; a password is given or generated")
    password = "".join(secrets.choice(_LETTERS) for _ in range(GENERATED)) if generated else _given(run)
    if len(password) < PASSWORD_MIN:
        raise CommandFailed(f"the password has {len(password)} characters; it needs at least {PASSWORD_MIN}")
    size = len(password.encode())
    if size > PASSWORD_MAX:
        raise CommandFailed(f"the password has {size} bytes; bcrypt takes at most {PASSWORD_MAX}")
    hashed = bcrypt.hashpw(password.encode(), bcrypt.gensalt(cost, prefix=b"2a")).decode()
    if run.output.as_json:
        run.output.json({"password": password, "hash": hashed} if generated else {"hash": hashed})
    elif generated:
        run.output.line(f"Generated password: {password}\n       bcrypt hash: {hashed}")
    else:
        run.output.line(hashed)


def _given(run: CommandRun) -> str:
    if run.values.given("pass"):
        return run.values.text("pass")
    if not run.can_ask:
        raise UsageError("the password is missing, and this is no terminal; give --pass or --generate")
    try:
        first, second = getpass.getpass("Enter password: "), getpass.getpass("Reenter password: ")
    except EOFError:
        raise CommandFailed("no answer") from None
    if first != second:
        raise CommandFailed("the passwords differ")
    return first


PASSWD = Command(
    name="passwd",
    summary="Print the bcrypt hash of a password, for configuration files.",
    run=_passwd,
    options=(
        Option(names=("--pass", "-p"), metavar="PASSWORD", env="PASSWORD", help="The password"),
        Option(names=("--cost", "-c"), convert=whole, default=COST_DEFAULT, help="Cost of the hash"),
        Option(names=("--generate", "-g"), convert=bool, help="Generate a password"),
    ),
    aliases=("mkpasswd", "pass", "password"),
    details="Without --pass and --generate it asks twice, and shows nothing of what is typed. A password on "
    "the command line can be seen by other users of the machine.",
    examples=("server passwd", "server passwd --generate"),
    connects=False,
)
