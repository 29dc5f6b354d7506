"""Applies options and tokens to accounts, when they are created and at each reload.

`configure_account` applies the options to one account. `renew` does so for all, creates missing accounts, and
sets up imports (`share`). `remove_unconfigured` drops accounts that are no longer configured: the
authenticator has closed or moved their clients, and their streams stay on disk. `close_excess` closes the
youngest connections above an account's limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.net.reasons import CloseReason
from penstock.server.config.server_options import GLOBAL_ACCOUNT

if TYPE_CHECKING:
    from penstock.routing.account import Account
    from penstock.server.server import Server


def configure_account(server: Server, account: Account) -> None:
    """Sets the mappings: the top-level ones for the global account, their own for other accounts."""
    options = server.options
    own = server.account_options(account.name)
    mappings = options.mappings if account.name == GLOBAL_ACCOUNT else own.mappings if own else ()
    if not mappings:
        account.drop_mappings()
    else:
        from random import randrange

        from penstock.routing.mapping import Mappings

        account.set_mappings(Mappings(mappings), randrange)


def renew(server: Server) -> None:
    """Applies the current options to all accounts of a running server."""
    configured = _configured(server)
    for name in configured:
        if name in server.accounts:
            configure_account(server, server.accounts[name])
        else:
            server.account(name)
    _update_sessions(server)


def reconfigure_account(server: Server, name: str) -> None:
    """Applies the current token to one account and its sessions."""
    configure_account(server, server.account(name))
    _update_sessions(server)


def _update_sessions(server: Server) -> None:
    for session in server.sessions.values():
        if session.identity is not None and session.identity.account in server.accounts:
            session.update_account()
    share(server)


def share(server: Server) -> None:
    """Sets up imports for the current options. Unchanged imports keep their pending requests."""
    if server.service_requests is None and any(own.imports for own in server.all_account_options()):
        from penstock.server.accounts.service_requests import (
            ServiceRequests,  # most configurations share nothing
        )

        server.service_requests = ServiceRequests(server)
    if server.service_requests is not None:
        server.service_requests.set_up()


def _configured(server: Server) -> set[str]:
    """Names of the accounts that exist even without sessions."""
    named = {account.name for account in server.options.accounts}
    known = set(server.operators.known) if server.operators is not None else set()
    own = {server.options.system_account} if server.options.has_system_account else set()
    return named | known | own | {GLOBAL_ACCOUNT}


def remove_unconfigured(server: Server) -> None:
    """Removes accounts that are neither configured nor in use."""
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
    """Closes connections above an account's `max_connections`, the youngest first. (The official server's
    order is random.) Sessions that are still authenticating do not count."""
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
