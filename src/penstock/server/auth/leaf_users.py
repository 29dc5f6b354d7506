"""How leaf nodes log in: by the users of `leafnodes.authorization`, or else as the server's clients do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.server.auth.authenticator import (
    Authenticator,
    ConfiguredUsers,
    Credentials,
    Identity,
    is_signed,
)
from penstock.server.auth.passwords import Passwords, is_bcrypt, stand_in

if TYPE_CHECKING:
    from penstock.server.config.leaf_options import LeafUser
    from penstock.server.config.server_options import ServerOptions


def leaf_users(options: ServerOptions, default: Authenticator, passwords: Passwords) -> Authenticator | None:
    """The authenticator of leaf nodes; None = the server's."""
    leafs = options.leafnodes
    assert leafs is not None
    if leafs.users:
        maps = leafs.tls is not None and leafs.tls.verify_and_map
        return LeafUsers(leafs.users, passwords, maps=maps, proxy_required=leafs.proxy_required)
    if leafs.account and isinstance(default, ConfiguredUsers) and not default.configured:
        return _OneAccount(leafs.account)
    return None


class _OneAccount:
    """Accepts every leaf node."""

    required = needs_nonce = False

    def __init__(self, account: str) -> None:
        self._account = account

    def check(self, credentials: Credentials) -> Identity | None:
        return Identity(self._account, credentials.user)

    def is_slow(self, credentials: Credentials) -> bool:
        return False

    def has_user(self, name: str) -> bool:
        return False


class LeafUsers:
    """Authenticates the users of `leafnodes.authorization`.

    Args:
        users: the users.
        passwords: cache of verified passwords.
        maps: the leaf node's certificate selects the user (`tls.verify_and_map`).
        proxy_required: all must connect through a trusted proxy.
    """

    required = needs_nonce = True

    def __init__(
        self, users: tuple[LeafUser, ...], passwords: Passwords, *, maps: bool, proxy_required: bool
    ) -> None:
        self._users = {user.name: user for user in users}
        self._passwords = passwords
        self._maps = maps
        self._proxy_required = proxy_required
        self._stand_in = stand_in(user.password for user in users)

    def check(self, credentials: Credentials) -> Identity | None:
        known = self._users.get(self._name(credentials))
        if known is not None and known.nkey:
            return self._identity(known) if is_signed(credentials, known.name) else None
        if known is not None and self._maps:
            return self._identity(known)
        # As for clients, a wrong name takes as long as a wrong password.
        expected = known.password if known is not None else self._stand_in or "\x00"
        matches = self._passwords.match(credentials.password, expected)
        return self._identity(known) if matches and known is not None else None

    def is_slow(self, credentials: Credentials) -> bool:
        known = self._users.get(credentials.user)
        expected = known.password if known is not None else self._stand_in
        return (
            bool(expected) and is_bcrypt(expected) and self._passwords.is_slow(credentials.password, expected)
        )

    def has_user(self, name: str) -> bool:
        return name in self._users

    def _name(self, credentials: Credentials) -> str:
        if not self._maps:
            return credentials.nkey or credentials.user
        if not credentials.certificate:
            return ""
        from penstock.server.auth.certificate_users import user_of

        return user_of(credentials.certificate, list(self._users)) or ""

    def _identity(self, user: LeafUser) -> Identity:
        required = user.proxy_required or self._proxy_required
        return Identity(user.account, user.name, proxy_required=required)
