"""Auth callout policies: which service authenticates a client, and which replies are trusted.

With nats.conf there is one service. It authenticates clients that the configuration does not accept, and
configured users of `allowed_accounts`. Its issuer signs replies and user tokens; the audience of a user token
is the account name.

With operators, each account may delegate its users to a service (`authorization` in its claims). The client
must provide a valid token of the account before the service is asked; for clients without a token,
`default_sentinel` provides one. The account or its signing keys sign replies. The issuer account of the user
token is the user's
account: the service's, or one of its `allowed_accounts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from penstock.errors import MisuseError
from penstock.protocol.claims import ALL, GenericClaims, UserClaims, UserLimits
from penstock.routing.permissions import Permissions
from penstock.server.auth.authenticator import Credentials, Identity
from penstock.server.auth.operators import KnownAccount, Operators, limits_of
from penstock.server.config.server_options import GLOBAL_ACCOUNT, CalloutOptions


@dataclass(frozen=True, slots=True)
class CalloutService:
    """The service for one client.

    account: account in which the service listens.
    subject: subject of the request token.
    xkey: curve key of the service; "" = unencrypted.
    token: the client's token, for the request.
    """

    account: str
    subject: str
    xkey: str = ""
    token: str = ""


@dataclass(frozen=True, slots=True)
class UserPlacement:
    """The assignment of a user: account, limits, and default permissions of the account."""

    account: str
    limits: UserLimits
    default_permissions: Permissions | None = None


class CalloutPolicy(Protocol):
    """Selects the service for a client and interprets replies."""

    def service(self, credentials: Credentials, identity: Identity | None) -> CalloutService | None:
        """The service for a client; None = no auth callout.

        `identity` is the identity from the credentials, None when they were refused.
        """

    def asks_in(self, account: str) -> bool:
        """Whether requests are published in this account."""

    def check_signer(self, service: CalloutService, answer: GenericClaims) -> None:
        """Raises MisuseError for a reply whose signer is not trusted."""

    def placement(self, service: CalloutService, user: UserClaims) -> UserPlacement:
        """The assignment of the user in a reply. Raises MisuseError."""


class ConfiguredPolicy:
    """The policy of the block `auth_callout`.

    Args:
        options: the block.
        accounts: names of all accounts.
    """

    def __init__(self, options: CalloutOptions, accounts: frozenset[str]) -> None:
        self._options = options
        self._accounts = accounts

    def service(self, credentials: Credentials, identity: Identity | None) -> CalloutService | None:
        if identity is not None and not self._is_delegated(identity.account):
            return None
        name = credentials.nkey or credentials.user
        if name in self._options.auth_users:
            return None
        return CalloutService(
            self._options.account, self._options.issuer, self._options.xkey, credentials.jwt
        )

    def _is_delegated(self, account: str) -> bool:
        """Whether the service authenticates configured users of this account."""
        allowed = self._options.allowed_accounts
        return account == GLOBAL_ACCOUNT or not allowed or account in allowed

    def asks_in(self, account: str) -> bool:
        return account == self._options.account

    def check_signer(self, service: CalloutService, answer: GenericClaims) -> None:
        if answer.issuer != self._options.issuer:
            raise MisuseError("auth callout signing key is unknown")

    def placement(self, service: CalloutService, user: UserClaims) -> UserPlacement:
        if user.nats.issuer_account:
            raise MisuseError(
                f"error non operator mode account {service.account!r}: attempted to use issuer_account"
            )
        if user.issuer != self._options.issuer:
            raise MisuseError(
                f"wrong issuer for auth callout response on account {service.account!r}, expected"
                f" {self._options.issuer!r} got {user.issuer!r}"
            )
        if user.audience not in self._accounts:
            raise MisuseError(f"no valid account {user.audience!r} for auth callout response")
        return UserPlacement(user.audience, user.nats.limits)


class OperatorPolicy:
    """The policy of the accounts' claims.

    Args:
        operators: resolves accounts.
    """

    def __init__(self, operators: Operators) -> None:
        self._operators = operators

    def service(self, credentials: Credentials, identity: Identity | None) -> CalloutService | None:
        if identity is None:
            return None
        known = self._operators.known[identity.account]
        callout = known.claims.nats.authorization
        if not callout.auth_users or identity.user in callout.auth_users:
            return None
        token = self._operators.token_of(credentials)
        return CalloutService(known.name, known.name, callout.xkey, token)

    def asks_in(self, account: str) -> bool:
        known = self._operators.known.get(account)
        return known is not None and bool(known.claims.nats.authorization.auth_users)

    def check_signer(self, service: CalloutService, answer: GenericClaims) -> None:
        issuer_account = answer.nats.get("issuer_account", "")
        if issuer_account and issuer_account != service.account:
            raise MisuseError(
                f"auth callout response issuer account {issuer_account!r} is not the callout account"
            )
        if answer.issuer not in {service.account, *self._account(service.account).signing_keys}:
            raise MisuseError("auth callout signing key is unknown")

    def placement(self, service: CalloutService, user: UserClaims) -> UserPlacement:
        allowed = self._account(service.account).claims.nats.authorization.allowed_accounts
        name = user.account
        if name != service.account and allowed != (ALL,) and name not in allowed:
            raise MisuseError(
                f"account {user.issuer!r} not permitted as valid account option for auth callout for account"
                f" {service.account!r}"
            )
        known = self._operators.account(name)
        if known.expired:
            raise MisuseError(f"no valid account {name!r} for auth callout response: it has expired")
        return UserPlacement(known.name, limits_of(known, user), known.default_permissions)

    def _account(self, name: str) -> KnownAccount:
        return self._operators.account(name)
