"""Who may connect: the credentials of a CONNECT against those of the options.

One user with a password, a token, or a list of users; nothing configured lets everybody in. All users are
of the global account `$G` for now. Comparisons take the same time whatever they compare.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.server.options import Options

GLOBAL_ACCOUNT = "$G"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a connection is: its account, and the name that logs and connz show."""

    account: str
    user: str


class Authenticator:
    """Checks credentials. `required` is what INFO says as auth_required."""

    def __init__(self, options: Options) -> None:
        self._token = options.token
        self._passwords = {user.name: user.password for user in options.users}
        if options.user:
            self._passwords[options.user] = options.password
        self._no_auth_user = options.no_auth_user
        self.configured = bool(self._token or self._passwords)
        self.required = self.configured and not self._no_auth_user

    def check(self, *, user: str, password: str, token: str) -> Identity | None:
        """The identity these credentials prove; None when they are refused."""
        if not self.configured:
            return Identity(GLOBAL_ACCOUNT, user)
        if self._token:
            return Identity(GLOBAL_ACCOUNT, "token") if _same(token, self._token) else None
        if not user and not password and not token and self._no_auth_user:
            return Identity(GLOBAL_ACCOUNT, self._no_auth_user)
        expected = self._passwords.get(user)
        # Compare even for an unknown user, so that time doesn't tell which names exist.
        matches = _same(password, expected if expected is not None else "\x00")
        return Identity(GLOBAL_ACCOUNT, user) if matches and expected is not None else None

    def without_credentials(self) -> Identity | None:
        """Who a connection is that sends operations before any CONNECT; None when it must send one first."""
        return self.check(user="", password="", token="")


def _same(given: str, expected: str) -> bool:
    import hmac  # imported when first needed: it costs start-up time

    return hmac.compare_digest(given.encode(), expected.encode())
