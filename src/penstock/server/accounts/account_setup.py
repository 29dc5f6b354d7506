"""Accounts as the options say: when they are made, and again at each reload.

`furnish` gives an account what its options say of it, whether it is new or not; `renew` does that for all,
makes those that are new and their imports (`share`); `forget_gone` lets those go that are no longer
configured. The clients of an account that is gone have been closed, or moved, by the authenticator; its
streams stay on the disk. `close_excess` ends the youngest connections of accounts that have too many now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.net.reasons import CloseReason
from penstock.server.config.server_options import GLOBAL_ACCOUNT

if TYPE_CHECKING:
    from penstock.routing.account import Account
    from penstock.server.server import Server


def furnish(server: Server, account: Account) -> None:
    """Mappings; the top-level ones are those of the global account, other accounts have their own."""
    options = server.options
    own = server.account_options(account.name)
    mappings = options.mappings if account.name == GLOBAL_ACCOUNT else own.mappings if own else ()
    account.mapper = None
    if mappings:
        from random import randrange

        from penstock.routing.mapping import Mappings

        account.set_mappings(Mappings(mappings), randrange)


def renew(server: Server) -> None:
    """Makes the accounts of a running server what its options say now."""
    configured = _configured(server)
    for name in configured:
        if name in server.accounts:
            furnish(server, server.accounts[name])
        else:
            server.account(name)
    _tell_sessions(server)


def refurnish(server: Server, name: str) -> None:
    """One account is what its token says now, for those who are in it as well."""
    furnish(server, server.account(name))
    _tell_sessions(server)


def _tell_sessions(server: Server) -> None:
    for session in server.sessions.values():
        if session.identity is not None and session.identity.account in server.accounts:
            session.ingress.mapper = server.accounts[session.identity.account].mapper
            session.trace_parents()
    share(server)


def share(server: Server) -> None:
    """Makes imports what the options say; their accounts are there. Imports that stay keep their requests."""
    if server.service_requests is None and any(own.imports for own in server.all_account_options()):
        from penstock.server.accounts.service_requests import (
            ServiceRequests,  # most configurations share nothing
        )

        server.service_requests = ServiceRequests(server)
    if server.service_requests is not None:
        server.service_requests.set_up()


def _configured(server: Server) -> set[str]:
    """Accounts that are there whether somebody is in them or not."""
    named = {account.name for account in server.options.accounts}
    known = set(server.operators.known) if server.operators is not None else set()
    own = {server.options.system_account} if server.options.has_system_account else set()
    return named | known | own | {GLOBAL_ACCOUNT}


def forget_gone(server: Server) -> None:
    """Lets accounts go that are no longer configured; nobody is in them any more."""
    configured = _configured(server)
    inhabited = {
        session.identity.account
        for session in server.sessions.values()
        if session.identity is not None and session.connection.close_reason is None
    }
    for name in tuple(server.accounts):
        if name not in configured and name not in inhabited:
            del server.accounts[name]


def close_excess(server: Server) -> None:
    """Closes what an account has above its `max_connections`: the youngest, where the official server's
    choice is its map's. Who is waiting to be let in is not counted yet."""
    counts: dict[str, int] = {}
    for session in tuple(server.sessions.values()):
        if session.identity is None or session.connection.close_reason is not None:
            continue
        account = session.identity.account
        own = server.account_options(account)
        if own is None or own.max_connections < 0:
            continue
        counts[account] = counts.get(account, 0) + 1
        if counts[account] > own.max_connections:
            server.log.error(f"{session.name} - maximum account active connections exceeded")
            session.refuse("maximum account active connections exceeded", CloseReason.MAX_ACCOUNT_CONNECTIONS)
