"""Who is asked about a client, and whose answers count: as nats.conf says, or as accounts' tokens say.

With nats.conf there is one service. It is asked about everybody whom the configuration doesn't let in, and
about configured users of `allowed_accounts`; its issuer signs answers and users, and the audience of a user's
token names the account.

With operators each account may leave its users to a service of its own (`authorization` in its claims). A
client has to show a token of the account that holds before the service is asked; that it only says where to
ask is what `default_sentinel` is for. Answers are signed by the account or its signing keys. The account that
issued a user's token is the one the user comes to: the service's, or one of its `allowed_accounts`.
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
class Service:
    """Who is asked.

    account: where it listens. subject: what the question's token is about. xkey: its curve key, "" for none.
    token: the client's, as the service is told.
    """

    account: str
    subject: str
    xkey: str = ""
    token: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a user comes to: its account, its own limits, and the permissions of users who have none."""

    account: str
    limits: UserLimits
    default_permissions: Permissions | None = None


class Policy(Protocol):
    """Decides whom to ask and what answers mean."""

    def service(self, credentials: Credentials, identity: Identity | None) -> Service | None:
        """Who is asked about a client, whom its credentials let in (as `identity`) or did not.

        None = nobody.
        """

    def asks_in(self, account: str) -> bool:
        """Are questions of the server published in this account?"""

    def check_signer(self, service: Service, answer: GenericClaims) -> None:
        """Raises MisuseError when somebody signed an answer who may not."""

    def place(self, service: Service, user: UserClaims) -> Place:
        """Where the user of an answer comes to. Raises MisuseError."""


class ConfiguredPolicy:
    """As the block `auth_callout` of nats.conf says.

    Args: options: the block; accounts: the names of those there are.
    """

    def __init__(self, options: CalloutOptions, accounts: frozenset[str]) -> None:
        self._options = options
        self._accounts = accounts

    def service(self, credentials: Credentials, identity: Identity | None) -> Service | None:
        if identity is not None and not self._is_delegated(identity.account):
            return None
        name = credentials.nkey or credentials.user
        if name in self._options.auth_users:
            return None
        return Service(self._options.account, self._options.issuer, self._options.xkey, credentials.jwt)

    def _is_delegated(self, account: str) -> bool:
        """Does the service decide about configured users of this account?"""
        allowed = self._options.allowed_accounts
        return account == GLOBAL_ACCOUNT or not allowed or account in allowed

    def asks_in(self, account: str) -> bool:
        return account == self._options.account

    def check_signer(self, service: Service, answer: GenericClaims) -> None:
        if answer.issuer != self._options.issuer:
            raise MisuseError("auth callout signing key is unknown")

    def place(self, service: Service, user: UserClaims) -> Place:
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
        return Place(user.audience, user.nats.limits)


class OperatorPolicy:
    """As the tokens of accounts say.

    Args: operators: knows the accounts.
    """

    def __init__(self, operators: Operators) -> None:
        self._operators = operators

    def service(self, credentials: Credentials, identity: Identity | None) -> Service | None:
        if identity is None:
            return None
        known = self._operators.known[identity.account]
        callout = known.claims.nats.authorization
        if not callout.auth_users or identity.user in callout.auth_users:
            return None
        token = self._operators.token_of(credentials)
        return Service(known.name, known.name, callout.xkey, token)

    def asks_in(self, account: str) -> bool:
        known = self._operators.known.get(account)
        return known is not None and bool(known.claims.nats.authorization.auth_users)

    def check_signer(self, service: Service, answer: GenericClaims) -> None:
        issuer_account = answer.nats.get("issuer_account", "")
        if issuer_account and issuer_account != service.account:
            raise MisuseError(
                f"auth callout response issuer account {issuer_account!r} is not the callout account"
            )
        if answer.issuer not in {service.account, *self._account(service.account).signing_keys}:
            raise MisuseError("auth callout signing key is unknown")

    def place(self, service: Service, user: UserClaims) -> Place:
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
        return Place(known.name, limits_of(known, user), known.default_permissions)

    def _account(self, name: str) -> KnownAccount:
        return self._operators.account(name)
