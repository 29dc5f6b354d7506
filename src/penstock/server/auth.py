"""Who may connect: the credentials of a CONNECT against those of the options.

One user with a password, a token, or users, each in its account; nothing configured lets everybody in. Plain
passwords are compared in a time that tells nothing. Of a bcrypt hash the password that proved right is
remembered, as a keyed digest, so that a client that comes again doesn't cost its tenth of a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.server.options import GLOBAL_ACCOUNT, Options, User

if TYPE_CHECKING:
    from penstock.routing.permissions import Permissions

__all__ = ["GLOBAL_ACCOUNT", "Authenticator", "Identity"]

_BCRYPT = ("$2a$", "$2b$", "$2x$", "$2y$")


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a connection is: its account, the name that logs and connz show, and what it may do."""

    account: str
    user: str
    permissions: Permissions | None = None


class Authenticator:
    """Checks credentials. `required` is what INFO says as auth_required."""

    def __init__(self, options: Options) -> None:
        self._token = options.token
        self._users = {user.name: user for user in options.all_users()}
        if options.user:
            self._users[options.user] = User(name=options.user, password=options.password)
        self._no_auth_user = options.no_auth_user
        self._passwords = Passwords()
        self.configured = bool(self._token or self._users)
        self.required = self.configured and not self._no_auth_user

    def check(self, *, user: str, password: str, token: str) -> Identity | None:
        """The identity these credentials prove; None when they are refused."""
        if not self.configured:
            return Identity(GLOBAL_ACCOUNT, user)
        if self._token:
            proven = self._passwords.match(token, self._token)
            return Identity(GLOBAL_ACCOUNT, "token") if proven else None
        if not user and not password and not token and self._no_auth_user:
            return _identity(self._users[self._no_auth_user])
        known = self._users.get(user)
        # Compare even for an unknown user, so that time does not tell which names exist (a bcrypt hash does).
        matches = self._passwords.match(password, known.password if known is not None else "\x00")
        return _identity(known) if matches and known is not None else None

    def without_credentials(self) -> Identity | None:
        """Who a connection is that sends operations before any CONNECT; None when it must send one first."""
        return self.check(user="", password="", token="")


def _identity(user: User) -> Identity:
    return Identity(user.account, user.name, user.permissions)


def is_bcrypt(password: str) -> bool:
    """Is a configured password a bcrypt hash?"""
    return password.startswith(_BCRYPT)


class Passwords:
    """Compares what clients give with what is configured, plain or bcrypt."""

    def __init__(self) -> None:
        self._key = b""
        self._proven: dict[str, bytes] = {}  # bcrypt hash: keyed digest of its password

    def match(self, given: str, expected: str) -> bool:
        import hmac  # imported when first needed: it costs start-up time

        if not is_bcrypt(expected):
            return hmac.compare_digest(given.encode(), expected.encode())
        digest = self._digest(given)
        if hmac.compare_digest(self._proven.get(expected, b""), digest):
            return True
        if not _matches_bcrypt(given, expected):
            return False
        self._proven[expected] = digest
        return True

    def _digest(self, password: str) -> bytes:
        import hmac
        import os

        if not self._key:
            self._key = os.urandom(32)
        return hmac.digest(self._key, password.encode(), "sha256")


def _matches_bcrypt(given: str, expected: str) -> bool:
    """bcrypt takes at most 72 bytes; a longer password matches nothing, as with the official server."""
    import bcrypt

    try:
        return bcrypt.checkpw(given.encode(), expected.encode())
    except ValueError:  # no hash after all, or too long a password
        return False
