"""`penstock errors`: the error codes of the JetStream API."""

from __future__ import annotations

import re

from penstock.cli.framework.command_run import CommandFailed, CommandRun
from penstock.cli.framework.command_table import Argument, CommandGroup, Option
from penstock.cli.framework.value_kinds import count
from penstock.errors import MisuseError
from penstock.protocol import error_codes
from penstock.protocol.api.base import ApiError

ERRORS = CommandGroup("errors", "Explain error codes of the JetStream API.", aliases=("err", "error"))
_ORDERS = {"code": "err_code", "http": "code", "description": "description"}


def _named_errors() -> dict[str, ApiError]:
    found = {name: one for name, one in vars(error_codes).items() if isinstance(one, ApiError)}
    return dict(sorted(found.items(), key=lambda pair: pair[1].err_code))


@ERRORS.command(
    "ls",
    "List the error codes.",
    arguments=(
        Argument(name="match", help="Only those that this regular expression matches", required=False),
        Argument(name="sort", help="Order of the list", required=False, choices=tuple(_ORDERS)),
    ),
    options=(Option(names=("--reverse", "-R"), convert=bool, help="Reverse the order"),),
    aliases=("list",),
    connects=False,
)
async def list_errors(run: CommandRun) -> None:
    """List error codes."""
    pattern, key = run.values.text("match"), _ORDERS[run.values.text("sort", "code")]
    try:
        matches = re.compile(pattern, re.IGNORECASE).search
    except re.error as error:
        raise MisuseError(f"{pattern!r} is not a regular expression: {error}") from None
    found = [
        (name, one)
        for name, one in _named_errors().items()
        if matches(f"{one.err_code} {one.description} {name}")
    ]
    found.sort(key=lambda pair: getattr(pair[1], key), reverse=run.values.flag("reverse"))
    if run.output.as_json:
        run.output.json([_object(name, one) for name, one in found])
        return
    rows = [(one.err_code, one.code, one.description, name) for name, one in found]
    columns = ("NATS Code", "HTTP Error Code", "Description", "Constant")
    run.output.table(columns, rows, numbers="NATS Code,HTTP Error Code")


def _object(name: str, one: ApiError) -> dict[str, object]:
    return {"constant": name, "code": one.code, "error_code": one.err_code, "description": one.description}


@ERRORS.command(
    "lookup",
    "Show an error code.",
    arguments=(Argument(name="code", help="The code", convert=count),),
    aliases=("find", "get", "l", "view", "show"),
    connects=False,
    examples=("errors lookup 10059",),
)
async def lookup(run: CommandRun) -> None:
    """Show one error code."""
    code = run.values.number("code")
    for name, one in _named_errors().items():
        if one.err_code == code:
            if run.output.as_json:
                run.output.json(_object(name, one))
                return
            rows = [("Description", one.description), ("HTTP Code", one.code), ("Constant", name)]
            run.output.sections(f"NATS Error Code: {code}", [("", rows)])
            return
    raise CommandFailed(f"there is no error code {code}; see `penstock errors ls`")
