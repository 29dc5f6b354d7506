"""`penstock server account`: an account as a server knows it, and the removal of its streams."""

from __future__ import annotations

from typing import Any

from penstock.cli.bucket_options import FORCE
from penstock.cli.framework.command_run import CommandFailed, CommandRun
from penstock.cli.framework.command_table import Argument, CommandGroup, Option
from penstock.cli.reports.server_tables import page_sections
from penstock.cli.reports.system_requests import ask_servers
from penstock.cli.server_selection import SYSTEM_ACCOUNT, print_done
from penstock.errors import NoRespondersError
from penstock.protocol.api import SuccessResponse

ACCOUNT = CommandGroup("account", "Examine accounts of servers.", aliases=("acct",))


@ACCOUNT.command(
    "info",
    "Show an account as a server knows it: limits, imports, exports, mappings.",
    arguments=(Argument(name="account", help="Name or public key of the account"),),
    options=(Option(names=("--host",), metavar="SERVER", help="Ask the server with this name"),),
    aliases=("i",),
    details=SYSTEM_ACCOUNT,
)
async def info(run: CommandRun) -> None:
    """Show the ACCOUNTZ page of an account. A user of the system account may."""
    account, host = run.values.text("account"), run.values.text("host")
    options: dict[str, Any] = {"account": account}
    if host:
        options |= {"server_name": host, "exact_match": True}
    async with run.connect() as client:
        answers = await ask_servers(client, "ACCOUNTZ", options, timeout_s=run.settings.timeout_s, expect=1)
    page = answers[0].data.get("account_detail")
    if not page:
        raise CommandFailed(f"server {answers[0].server_name} has no account {account!r}")
    if run.output.as_json:
        run.output.json(page)
        return
    title = f"Account information for account {page.get('account_name', account)}"
    run.output.sections(title, page_sections(page))


@ACCOUNT.command(
    "purge",
    "Delete all streams and consumers of an account from a JetStream cluster.",
    arguments=(Argument(name="account", help="Name or public key of the account"),),
    options=(FORCE,),
    details=f"{SYSTEM_ACCOUNT} Servers in a cluster do it; a server of its own does not take the request.",
)
async def purge(run: CommandRun) -> None:
    """Request the removal of all that an account has stored. A user of the system account may."""
    account = run.values.text("account")
    question = f"Delete all data of account {account}, which can't be undone?"
    run.confirm(question, force=run.values.flag("force"))
    async with run.jetstream() as js:
        try:
            await js.call(SuccessResponse, f"ACCOUNT.PURGE.{account}")
        except NoRespondersError:
            raise CommandFailed(
                "no server takes this request: it needs a cluster with JetStream, and a user of the system "
                "account"
            ) from None
    print_done(run, {"initiated": True}, f"Initiated the removal of all data of account {account}")
