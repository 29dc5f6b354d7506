"""How clients log in, by the options in effect: authenticators, and the auth callout if there is one.

Invariant: all are for the same options, those at construction or at the last `renew`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.server.auth.authenticator import GLOBAL_ACCOUNT, Authenticator, ConfiguredUsers
from penstock.server.auth.passwords import Passwords

if TYPE_CHECKING:
    from penstock.server.accounts.account_registry import AccountRegistry
    from penstock.server.auth.auth_callout import AuthCallout
    from penstock.server.server_context import ServerContext


class Logins:
    """The authenticators of a server.

    Args:
        context: options with the users.
        accounts: the operators, and the accounts in which callout services listen.
    """

    def __init__(self, context: ServerContext, accounts: AccountRegistry) -> None:
        self._context = context
        self._accounts = accounts
        self.passwords = Passwords()
        self.renew()

    def renew(self) -> None:
        """Checks logins by the current options from now on."""
        options, operators = self._context.options, self._accounts.operators
        self.default: Authenticator = operators or ConfiguredUsers(options, passwords=self.passwords)
        self.websocket: Authenticator | None = None
        """That of the block `websocket`; None = the default. With operators, always the default."""
        if options.websocket is not None and options.websocket.has_own_users and operators is None:
            self.websocket = ConfiguredUsers(options, options.websocket, self.passwords)
        self.leafs: Authenticator | None = None
        """That of the block `leafnodes`; None = the default."""
        if options.leafnodes is not None and operators is None:
            from penstock.server.auth.leaf_users import leaf_users  # few servers have leaf nodes

            self.leafs = leaf_users(options, self.default, self.passwords)
        self.callout = self._new_callout()

    def authenticator_of(self, kind: str) -> Authenticator:
        """The authenticator of connections of kind "nats", "websocket" or "leaf"."""
        own = self.websocket if kind == "websocket" else self.leafs if kind == "leaf" else None
        return own or self.default

    def _new_callout(self) -> AuthCallout | None:
        options, operators = self._context.options, self._accounts.operators
        if options.auth_callout is None and operators is None:
            return None
        from penstock.server.auth.auth_callout import AuthCallout
        from penstock.server.auth.callout_policies import ConfiguredPolicy, OperatorPolicy

        if operators is not None:
            return AuthCallout(self._context, self._accounts, OperatorPolicy(operators))
        assert options.auth_callout is not None
        names = {account.name for account in options.accounts}
        system = {GLOBAL_ACCOUNT, options.system_account}
        policy = ConfiguredPolicy(options.auth_callout, frozenset(names | system))
        return AuthCallout(self._context, self._accounts, policy)

    def close(self) -> None:
        """Ends the threads that compare passwords."""
        self.passwords.close()
