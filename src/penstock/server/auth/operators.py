"""Operator mode: authenticates accounts and users by JWTs instead of configuration.

An operator signs account tokens; an account, or one of its signing keys, signs user tokens. A client provides
its user token and signs the nonce of INFO. The resolver provides the account token on first use. From then on
the account is *known*: its claims determine limits, mappings, JetStream, imports and exports, until a new
token replaces the old one (`update`).

Authentication checks every signature, time, limit and revocation on this path, in the official server's
order. As there, the client gets the same error for every reason; the log has the reason.

When a token changes, clients that could not log in under the new one are closed with the official texts. An
account whose token expires closes its clients and accepts none until it has a new token.

Rejected: keeping known accounts in the options. They change while the server runs; options do not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING

from msgspec import structs

from penstock.errors import ConfigError, MisuseError
from penstock.net.reasons import CloseReason
from penstock.protocol.claims import (
    AccountClaims,
    ImportClaim,
    ScopeClaim,
    UserClaims,
    UserLimits,
    seconds_left,
)
from penstock.protocol.jwt import decode_account, decode_operator, decode_user
from penstock.protocol.user_templates import fill
from penstock.routing.permissions import Permissions
from penstock.server.auth import activations
from penstock.server.auth.account_claims import account_options, connection_types_of, permissions_of
from penstock.server.auth.authenticator import Credentials, Identity, is_signed
from penstock.server.auth.resolver import MemoryResolver, resolver_of
from penstock.server.config.option_checks import NS
from penstock.server.config.server_options import (
    SYSTEM_ACCOUNT,
    AccountJetStream,
    AccountOptions,
)

if TYPE_CHECKING:
    from penstock.server.accounts.account_registry import AccountRegistry
    from penstock.server.server_context import ServerContext
    from penstock.server.session_registry import SessionRegistry


class Untrusted(MisuseError):
    """Why authentication failed. For the log only."""


@dataclass(slots=True)
class KnownAccount:
    """An account with its current token."""

    claims: AccountClaims
    token: str
    options: AccountOptions
    default_permissions: Permissions | None
    signing_keys: dict[str, ScopeClaim | None]
    """Keys that may sign users of this account, with their scopes; None without scope."""
    updated_ns: int
    expired: bool = False
    timer: asyncio.TimerHandle | None = None
    activation_timer: asyncio.TimerHandle | None = None

    @property
    def name(self) -> str:
        return self.claims.subject

    def renew(self, options: AccountOptions) -> None:
        """Replaces the options: other activations of its imports are valid now."""
        self.options = options

    def expire(self) -> None:
        """No client may log in until the account has a new token."""
        self.expired = True

    def expire_in(self, delay_s: float, on_expired: Callable[[KnownAccount], object]) -> None:
        """Sets the timer for the end of the token."""
        loop = asyncio.get_running_loop()
        self.timer = loop.call_later(max(0.0, delay_s), on_expired, self)

    def recheck_in(self, delay_s: float | None, on_time: Callable[[KnownAccount], object]) -> None:
        """Sets the timer for the next change of an activation, in place of the present one; None = no
        change will come."""
        if self.activation_timer is not None:
            self.activation_timer.cancel()
            self.activation_timer = None
        if delay_s is not None:
            loop = asyncio.get_running_loop()
            self.activation_timer = loop.call_later(max(0.0, delay_s), on_time, self)

    def stop_timers(self) -> None:
        """The account is removed or replaced."""
        for timer in (self.timer, self.activation_timer):
            if timer is not None:
                timer.cancel()
        self.timer = self.activation_timer = None


class Operators:
    """Authenticates by tokens and keeps the known accounts.

    Args:
        context: options with operators.
        accounts: the accounts of the server; this is their child.
        sessions: the clients of the accounts.

    Raises:
        ConfigError: the resolver's directory is unusable.
    """

    required = True
    needs_nonce = True

    def __init__(self, context: ServerContext, accounts: AccountRegistry, sessions: SessionRegistry) -> None:
        self._context = context
        self._accounts = accounts
        self._sessions = sessions
        options = context.options
        claims = [decode_operator(token) for token in options.operators]
        self._trusted = {key for one in claims for key in one.trusted_keys()} | set(options.trusted_keys)
        self._strict = {key for one in claims if one.nats.strict_signing_key_usage
                        for key in one.nats.signing_keys}  # fmt: skip
        self._root = claims[0].subject if claims else ""
        self.root_keys = frozenset(claims[0].trusted_keys()) if claims else frozenset()
        assert options.resolver is not None  # ensured by `check`
        self.resolver = resolver_of(options.resolver, context.clock())
        for account, token in options.resolver_preload:
            self.resolver.store(account, token, context.clock())
        self.known: dict[str, KnownAccount] = {}
        self._expected: set[str] = set()  # accounts of other servers, whose tokens are wanted

    def start(self, stored: list[str]) -> None:
        """Looks up the system account, and the accounts with stored data.

        Raises ConfigError when the configured system account cannot be resolved.
        """
        system = self._context.options.system_account
        if system != SYSTEM_ACCOUNT:
            try:
                self.account(system)
            except Untrusted as refused:
                raise ConfigError(f"error resolving system account: {refused}") from refused
        for name in stored:
            try:
                self.account(name)
            except Untrusted as refused:
                self._context.log.warning(f"Account [{name}] has streams, and is not known: {refused}")

    def close(self) -> None:
        """Cancels all timers."""
        for known in self.known.values():
            known.stop_timers()

    # -- users

    def check(self, credentials: Credentials) -> Identity | None:
        try:
            return self._identity(credentials)
        except (Untrusted, MisuseError, ConfigError) as refused:
            self._context.log.debug(f"{credentials.host} - authentication by token: {refused}")
            return None

    def is_slow(self, credentials: Credentials) -> bool:
        return False

    def has_user(self, name: str) -> bool:
        return False

    def _identity(self, credentials: Credentials) -> Identity:
        user = self._shown(credentials)
        now_ns = self._context.clock()
        problem = next(iter(user.problems()), "") or user.time_problem(now_ns // NS)
        if problem:
            raise Untrusted(f"User JWT no longer valid: {problem}")
        options = self._context.options
        pinned = options.resolver_pinned_accounts
        if pinned and user.account not in pinned | {options.system_account}:
            raise Untrusted(f"Account {user.account} not listed as operator pinned account")
        account = self.account(user.account)
        limits = limits_of(account, user)
        if account.expired:
            raise Untrusted("Account JWT has expired")
        self._check_how(credentials, account, user, limits)
        expires_ns = user.expires * NS
        if limits.times:
            ends_ns = now_ns + time_left_ns(limits, now_ns)
            expires_ns = min(expires_ns or ends_ns, ends_ns)
        permissions = permissions_of(limits)
        return Identity(
            account=account.name,
            user=user.subject,
            permissions=account.default_permissions if permissions is None else permissions,
            claims=user,
            issuer_key=user.issuer,
            expires_ns=expires_ns,
            proxy_required=limits.proxy_required,
            max_payload=limits.payload,
            max_subscriptions=limits.subs,
        )

    def _shown(self, credentials: Credentials) -> UserClaims:
        token = self.token_of(credentials)
        if not token:
            raise Untrusted("Authentication requires a user JWT")
        return decode_user(token)

    def token_of(self, credentials: Credentials) -> str:
        """The client's token; the sentinel's token when the client provides none."""
        sentinel = self._context.options.default_sentinel
        if not sentinel:
            return credentials.jwt
        try:
            decode_user(credentials.jwt)
        except MisuseError:
            return sentinel
        return credentials.jwt

    def _check_how(
        self, credentials: Credentials, account: KnownAccount, user: UserClaims, limits: UserLimits
    ) -> None:
        """Checks the client's address, connection type and signature."""
        if limits.bearer_token and account.claims.nats.limits.disallow_bearer:
            raise Untrusted("Account does not allow bearer tokens")
        types = connection_types_of(limits)
        if types is None or (types and credentials.connection_type not in types):
            raise Untrusted("Connection type not allowed")
        if not limits.bearer_token and not is_signed(credentials, user.subject):
            raise Untrusted("Signature not verified")
        if account.claims.nats.revokes(user.subject, user.issued_at):
            raise Untrusted("User authentication revoked")
        if limits.networks and not _comes_from(credentials.host, limits.networks):
            raise Untrusted(f"Bad src Ip {credentials.host}")

    # -- accounts

    def account(self, name: str) -> KnownAccount:
        """An account; resolves its token if it is not known. Raises Untrusted."""
        known = self.known.get(name)
        if known is not None and not known.expired:
            return known
        token = self._fetch(name)
        if known is not None:
            if token is not None and token != known.token:
                self.update(name, token)
            return self.known[name]
        known = self._stub(name) if token is None else self._read(name, token)
        self._adopt(known)
        if known.options.imports or self._is_imported(name):
            self._accounts.share()
        return known

    def expect(self, name: str) -> None:
        """Another server has this account, or its streams are assigned to this one: JetStream of a cluster
        answers an account's requests on servers where none of its clients is. So it is looked up soon, or
        when its token comes."""
        options = self._context.options
        is_wanted = options.jetstream is not None and options.cluster is not None
        if is_wanted and name not in self.known and name not in self._expected:
            self._expected.add(name)
            asyncio.get_running_loop().call_soon(self.token_stored, name)

    def token_stored(self, name: str) -> None:
        """The resolver may have a token of an account that it did not have before."""
        if name not in self._expected:
            return
        try:
            self.account(name)
        except (Untrusted, ConfigError, MisuseError) as refused:
            self._context.log.debug(f"Account [{name}], which another server has: {refused}")
        else:
            self._expected.discard(name)

    def _is_imported(self, name: str) -> bool:
        """Whether another account imports from this one."""
        return any(entry.account == name for known in self.known.values() for entry in known.options.imports)

    def options_of(self, name: str) -> AccountOptions | None:
        """The options of a known account."""
        known = self.known.get(name)
        return known.options if known is not None else None

    def jetstream_accounts(self) -> dict[str, AccountJetStream]:
        """JetStream limits of the known accounts that have JetStream."""
        found = {name: known.options.jetstream for name, known in self.known.items()}
        return {name: limits for name, limits in found.items() if limits is not None}

    def name_of(self, name: str) -> str:
        """Name from the account's claims; its key when there is none."""
        known = self.known.get(name)
        return (known.claims.name if known is not None else "") or name

    def update(self, name: str, token: str) -> None:
        """Replaces the token of a known account. On Untrusted, ConfigError or MisuseError the old one
        stays."""
        before = self.known[name]
        if before.token == token and not before.expired:
            return
        fresh = self._read(name, token)
        before.stop_timers()
        self._adopt(fresh)
        for other in self.known.values():
            if any(one.account == name and one.token for one in other.claims.nats.imports):
                self._renew_activations(other)
        self._accounts.reconfigure(name)
        self._update_sessions(before, fresh)

    def remove(self, name: str) -> None:
        """Removes a deleted account: closes its clients and JetStream. Stored data stays."""
        known = self.known.get(name)
        if known is None:
            return
        self._expire(known)
        known.stop_timers()
        self._accounts.limits_changed(name, None)
        del self.known[name]
        self._accounts.share()

    def reload(self) -> None:
        """Applies changed preloaded tokens to known accounts."""
        for account, token in self._context.options.resolver_preload:
            self.resolver.store(account, token, self._context.clock())
            if account in self.known:
                try:
                    self.update(account, token)
                except (Untrusted, ConfigError, MisuseError) as refused:
                    self._context.log.error(f"Account [{account}] keeps its token: {refused}")

    def verified(self, token: str) -> AccountClaims:
        """The claims of a valid account token signed by an operator. Raises Untrusted, MisuseError."""
        claims = decode_account(token)
        if claims.issuer not in self._trusted:
            raise Untrusted("account validation failed: not signed by a trusted operator")
        problem = next(iter(claims.problems()), "") or claims.time_problem(self._context.clock() // NS)
        if problem:
            raise Untrusted(f"account validation failed: {problem}")
        return claims

    def is_strict_about(self, issuer: str) -> bool:
        """Whether the issuer is an operator's identity key that may not sign accounts."""
        return issuer == self._root and issuer not in self.root_keys

    def _fetch(self, name: str) -> str | None:
        try:
            return self.resolver.fetch(name)
        except (OSError, UnicodeDecodeError) as error:
            raise Untrusted(f"Account JWT lookup error: {error}") from error

    def _read(self, name: str, token: str) -> KnownAccount:
        try:
            claims = self.verified(token)
        except Untrusted:
            raise
        except MisuseError as error:
            raise Untrusted(f"Account JWT lookup error: {error}") from error
        if claims.subject != name:
            raise Untrusted("account validation failed: the token is another account's")
        signing_keys = dict(claims.nats.scopes)
        if claims.issuer not in self._strict:
            signing_keys[name] = None
        now_ns = self._context.clock()
        return KnownAccount(
            claims=claims,
            token=token,
            options=self._options(claims, now_ns // NS),
            default_permissions=permissions_of(claims.nats.default_permissions),
            signing_keys=signing_keys,
            updated_ns=now_ns,
        )

    def _stub(self, name: str) -> KnownAccount:
        """A system account for a directory that does not have its token yet, so that tokens can be stored."""
        if name != self._context.options.system_account or isinstance(self.resolver, MemoryResolver):
            raise Untrusted(f"account {name} is not in the resolver")
        self._context.log.info("Using bootstrapping system account")
        return KnownAccount(
            claims=AccountClaims(subject=name, name=name),
            token="",
            options=AccountOptions(name=name),
            default_permissions=None,
            signing_keys={name: None},
            updated_ns=self._context.clock(),
        )

    def _adopt(self, known: KnownAccount) -> None:
        """Replaces the account's state by this one."""
        self.known[known.name] = known
        self._accounts.open(known.name)
        self._accounts.limits_changed(known.name, known.options.jetstream)
        if known.claims.expires:
            known.expire_in(known.claims.expires - self._context.clock() / NS, self._expire)
        self._watch_activations(known, known.updated_ns // NS)

    def _options(self, claims: AccountClaims, now_s: int) -> AccountOptions:
        """The options for these claims at this time. Raises ConfigError."""
        return account_options(claims, lambda one: self._is_activated(claims, one, now_s))

    def _is_activated(self, importer: AccountClaims, one: ImportClaim, now_s: int) -> bool:
        if not one.token:
            return False
        known = self.known.get(one.account)
        exporter = known.claims if known is not None else None
        if exporter is None:
            try:
                token = self._fetch(one.account)
                exporter = self.verified(token) if token is not None else None
            except (MisuseError, Untrusted):
                return False
        return exporter is not None and activations.holds(importer, one, exporter, now_s)

    def _renew_activations(self, known: KnownAccount) -> None:
        """Applies activations that have begun or ended to the account's imports."""
        now_s = self._context.clock() // NS
        known.renew(self._options(known.claims, now_s))
        self._watch_activations(known, now_s)

    def _watch_activations(self, known: KnownAccount, checked_s: int) -> None:
        """Sets the timer for the first change after `checked_s`, the time at which all activations were
        checked.

        It must be the time of the check: a timer can be early by its resolution, and an activation that
        ends between the check and a later reading of the clock would never be checked again.
        """
        at_s = activations.next_change(known.claims, checked_s)
        delay_s = at_s - self._context.clock() / NS if at_s else None
        known.recheck_in(delay_s, self._on_activation_time)

    def _on_activation_time(self, known: KnownAccount) -> None:
        self._renew_activations(known)
        self._accounts.share()

    # -- connected clients

    def _expire(self, known: KnownAccount) -> None:
        known.expire()
        for session in self._sessions.of_account(known.name):
            session.refuse("Account Authentication Expired", CloseReason.AUTHENTICATION_EXPIRED)

    def _update_sessions(self, before: KnownAccount, fresh: KnownAccount) -> None:
        """Closes or updates clients according to the new token of their account."""
        room = fresh.options.max_connections
        for session in self._sessions.of_account(fresh.name):
            identity = session.identity
            claims = identity.claims if identity is not None else None
            if room == 0:
                session.refuse(
                    "maximum account active connections exceeded", CloseReason.MAX_ACCOUNT_CONNECTIONS
                )
                continue
            room -= 1
            if identity is None or claims is None:
                continue
            if claims.nats.bearer_token and fresh.claims.nats.limits.disallow_bearer:
                session.refuse("Authorization Violation", CloseReason.AUTHENTICATION_FAILURE)
            elif fresh.claims.nats.revokes(claims.subject, claims.issued_at):
                session.refuse("User Authentication Revoked", CloseReason.REVOCATION)
            elif _signer_changed(before, fresh, claims.issuer):
                session.close(CloseReason.AUTHENTICATION_FAILURE)
            elif identity.permissions == before.default_permissions and permissions_of(claims.nats) is None:
                session.update_identity(structs.replace(identity, permissions=fresh.default_permissions))
            else:
                session.update_identity(identity)


def _signer_changed(before: KnownAccount, fresh: KnownAccount, issuer: str) -> bool:
    if issuer not in fresh.signing_keys:
        return True
    return before.signing_keys.get(issuer) != fresh.signing_keys[issuer]


def limits_of(account: KnownAccount, user: UserClaims) -> UserLimits:
    """Limits of a user: its own, or those of its signing key's scope. Raises Untrusted."""
    if user.issuer not in account.signing_keys:
        raise Untrusted("User JWT issuer is not known")
    scope = account.signing_keys[user.issuer]
    if scope is None:
        return user.nats.limits
    if user.nats.limits != UserLimits():
        raise Untrusted("scoped users require no permissions or limits set")
    try:
        return fill(scope.template, user, account.claims)
    except MisuseError as error:
        raise Untrusted(f"User JWT generated invalid permissions: {error}") from error


def _comes_from(host: str, networks: tuple[str, ...]) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return any(address in ip_network(network, strict=False) for network in networks)


def time_left_ns(limits: UserLimits, now_ns: int) -> int:
    """Time until the user's allowed hours end, ns. Raises Untrusted outside of them."""
    from zoneinfo import ZoneInfo

    try:
        zone = ZoneInfo(limits.times_location) if limits.times_location else None
    except (KeyError, ValueError, OSError) as error:  # a KeyError = unknown zone
        raise Untrusted(f"could not parse iana time zone by name: {error}") from error
    now = datetime.fromtimestamp(now_ns / NS, zone)
    second = now.hour * 3600 + now.minute * 60 + now.second + now.microsecond / 1e6
    left = seconds_left(limits.times, second)
    if left is None:
        raise Untrusted("Outside connect times")
    return int(left * NS)
