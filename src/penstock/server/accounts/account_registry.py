"""The accounts of a server: created on first use, configured by options or tokens.

`renew` applies changed options to all accounts, creates missing ones, and sets up imports (`share`).
`remove_unconfigured` drops accounts that are no longer configured: the authenticator has closed or moved
their clients, and their streams stay on disk. `close_excess` closes the youngest connections above an
account's limit.

Invariant: accounts that are configured or in use remain.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from typing import TYPE_CHECKING

from penstock.net.reasons import CloseReason
from penstock.routing.account import Account
from penstock.server.config.server_options import GLOBAL_ACCOUNT

if TYPE_CHECKING:
    from penstock.routing.mapping import SubjectMapping
    from penstock.server.accounts.service_requests import ServiceRequests
    from penstock.server.auth.operators import Operators
    from penstock.server.config.server_options import AccountJetStream, AccountOptions, ServerOptions
    from penstock.server.server_context import ServerContext
    from penstock.server.session import Session
    from penstock.server.session_registry import SessionRegistry

EXPECTED_MAX = 10_000


class AccountRegistry(Mapping[str, Account]):
    """Accounts by name.

    Args:
        context: options of the accounts; with operators, their tokens have the options.
        sessions: the clients in the accounts.

    Raises:
        ConfigError: the resolver of the operators is unusable.
    """

    def __init__(self, context: ServerContext, sessions: SessionRegistry) -> None:
        self._context = context
        self._sessions = sessions
        self._by_name: dict[str, Account] = {}
        self._expected: dict[str, Account] = {}  # have interest of other servers, and are not configured here
        self._options_by_name: dict[str, AccountOptions] = {}
        self._indexed: ServerOptions | None = None  # the options whose accounts it has
        self._on_created: list[Callable[[Account], object]] = []
        self._on_removed: list[Callable[[Account], object]] = []
        self._on_shared: list[Callable[[], object]] = []
        self._on_configured: list[Callable[[], object]] = []
        self._is_linked: Callable[[str], bool] = lambda name: False
        self._on_limits: list[Callable[[str, AccountJetStream | None], object]] = []
        self._service_requests: ServiceRequests | None = None
        self.count_elsewhere: Callable[[str], int] = lambda name: 0
        self.operators = self._open_operators()

    def __getitem__(self, name: str) -> Account:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def values(self) -> ValuesView[Account]:
        return self._by_name.values()

    def items(self) -> ItemsView[str, Account]:
        return self._by_name.items()

    def _open_operators(self) -> Operators | None:
        if not self._context.options.trusts_operators:
            return None
        from penstock.server.auth.operators import Operators

        return Operators(self._context, self, self._sessions)

    def when_created(self, callback: Callable[[Account], object]) -> None:
        """Calls callback(account) for every account that is created from now on."""
        self._on_created.append(callback)

    def when_removed(self, callback: Callable[[Account], object]) -> None:
        """Calls callback(account) for every account that is removed from now on."""
        self._on_removed.append(callback)

    def when_configured(self, callback: Callable[[], object]) -> None:
        """Calls callback() whenever accounts may have other mappings."""
        self._on_configured.append(callback)

    def keep_linked(self, is_linked: Callable[[str], bool]) -> None:
        """Keeps accounts that leaf nodes use: is_linked(name)."""
        self._is_linked = is_linked

    def when_shared(self, callback: Callable[[], object]) -> None:
        """Calls callback() whenever imports were set up."""
        self._on_shared.append(callback)

    def look_up(self, name: str) -> Account | None:
        """The account that another server names; None = unknown.

        With operators any account may exist whose token is not here yet, so it is created: interest of other
        servers comes only once, and must be there when a client brings the token.
        """
        account = self._by_name.get(name)
        if account is None and self.operators is not None:
            self.operators.expect(name)
            return self.open(name)
        return account

    def expect(self, name: str) -> Account | None:
        """An account that is not configured here, and takes interest of other servers until it is. Clusters
        are reloaded one server after the other, and interest comes only once: the JetStream API of a new
        account would have no answer. None = there are EXPECTED_MAX others.

        Otherwise than the official server, which loses such interest until its routes connect again.
        """
        account = self._expected.get(name)
        if account is None and len(self._expected) < EXPECTED_MAX:
            account = self._expected[name] = Account(name)
        return account

    def when_limits_change(self, callback: Callable[[str, AccountJetStream | None], object]) -> None:
        """Calls callback(name, limits) when a token changes the JetStream limits of an account; None = no
        JetStream."""
        self._on_limits.append(callback)

    def limits_changed(self, name: str, limits: AccountJetStream | None) -> None:
        """A token changed the JetStream limits of an account."""
        for callback in self._on_limits:
            callback(name, limits)

    def open(self, name: str) -> Account:
        """The account of that name; creates it on first use."""
        account = self._by_name.get(name)
        if account is None:
            expected = self._expected.pop(name, None)
            account = self._by_name[name] = expected or Account(name)
            self._configure(account)
            for callback in self._on_created:
                callback(account)
        return account

    def open_configured(self) -> None:
        """Creates the accounts of the options, and sets up their imports."""
        options = self._context.options
        self.open(GLOBAL_ACCOUNT)
        if options.has_system_account:
            self.open(options.system_account)
        for account in options.accounts:
            self.open(account.name)
        self.share()

    def close(self) -> None:
        """Cancels all timers."""
        if self.operators is not None:
            self.operators.close()
        if self._service_requests is not None:
            self._service_requests.close()

    # -- options

    def options_of(self, name: str) -> AccountOptions | None:
        """The configuration of an account, from options or token; None for `$G` and other unconfigured
        accounts."""
        if self.operators is not None:
            return self.operators.options_of(name)
        options = self._context.options
        if options is not self._indexed:  # at first, and after a reload
            self._indexed = options
            self._options_by_name = {account.name: account for account in options.accounts}
        return self._options_by_name.get(name)

    def all_options(self) -> list[AccountOptions]:
        """The configurations of all accounts from options and tokens."""
        if self.operators is None:
            return list(self._context.options.accounts)
        return [known.options for known in self.operators.known.values()]

    def jetstream_limits(self) -> dict[str, AccountJetStream]:
        """JetStream limits of the accounts that have JetStream."""
        return (self.operators or self._context.options).jetstream_accounts()

    def shown_name(self, name: str) -> str:
        """Display name of an account."""
        return name if self.operators is None else self.operators.name_of(name)

    def count_also(self, count_elsewhere: Callable[[str], int]) -> None:
        """Counts the connections of accounts on other servers too: count_elsewhere(account)."""
        self.count_elsewhere = count_elsewhere

    def has_room(self, name: str, new_session: Session) -> bool:
        """Whether the account may have one more connection."""
        own = self.options_of(name)
        if own is None or own.max_connections < 0:
            return True
        left = own.max_connections - self.count_elsewhere(name)
        return left > 0 and not self._sessions.is_full(name, left, new_session)

    def _configured(self) -> set[str]:
        """Names of the accounts that exist even without sessions."""
        options = self._context.options
        named = {account.name for account in options.accounts}
        known = set(self.operators.known) if self.operators is not None else set()
        own = {options.system_account} if options.has_system_account else set()
        return named | known | own | {GLOBAL_ACCOUNT}

    # -- changes

    def mappings_of(self, name: str) -> tuple[SubjectMapping, ...]:
        """Mappings of an account: the top-level ones for the global account, their own for other accounts;
        after them those of the JetStream domain."""
        options, own = self._context.options, self.options_of(name)
        mappings = options.mappings if name == GLOBAL_ACCOUNT else own.mappings if own else ()
        if options.jetstream is None or not options.jetstream.domain:
            return mappings
        from penstock.server.accounts.jetstream_subjects import domain_mappings, imports_api

        if imports_api(own) and name not in self.jetstream_limits():
            return mappings  # the API below the prefix is another account's
        return (*mappings, *domain_mappings(options.jetstream.domain, mappings))

    def _configure(self, account: Account) -> None:
        mappings = self.mappings_of(account.name)
        if not mappings:
            account.drop_mappings()
            return
        from random import randrange

        from penstock.routing.mapping import Mappings

        account.set_mappings(Mappings(mappings), randrange)

    def renew(self) -> None:
        """Applies the current options to all accounts of a running server."""
        for name in self._configured():
            if name in self._by_name:
                self._configure(self._by_name[name])
            else:
                self.open(name)
        self._update_sessions()

    def reconfigure(self, name: str) -> None:
        """Applies the current token to one account and its sessions."""
        self._configure(self.open(name))
        self._update_sessions()

    def _update_sessions(self) -> None:
        for session in self._sessions.values():
            if session.identity is not None and session.identity.account in self._by_name:
                session.update_account()
        for callback in self._on_configured:
            callback()
        self.share()

    def share(self) -> None:
        """Sets up imports for the current options. Unchanged imports keep their pending requests."""
        if self._service_requests is None:
            if not any(own.imports for own in self.all_options()):
                return
            from penstock.server.accounts.service_requests import (
                ServiceRequests,  # most configurations share nothing
            )

            self._service_requests = ServiceRequests(self._context, self)
        self._service_requests.set_up()
        for callback in self._on_shared:
            callback()

    def remove_unconfigured(self) -> None:
        """Removes accounts that are neither configured nor in use."""
        configured = self._configured()
        inhabited = {
            session.identity.account
            for session in self._sessions.values()
            if session.identity is not None and session.connection.close_reason is None
        }
        for name in tuple(self._by_name):
            if name not in configured and name not in inhabited and not self._is_linked(name):
                account = self._by_name.pop(name)
                for callback in self._on_removed:
                    callback(account)

    def close_excess(self, only: str = "", elsewhere: int = 0) -> None:
        """Closes connections above an account's `max_connections`, the youngest first. (The official server's
        order is random.) Sessions that are still authenticating do not count.

        Args:
            only: this account; "" = all.
            elsewhere: its connections on other servers, which count first.
        """
        counts: dict[str, int] = {only: elsewhere} if only else {}
        for session in tuple(self._sessions.values()):
            if session.identity is None or session.connection.close_reason is not None:
                continue
            account = session.identity.account
            own = self.options_of(account)
            if own is None or own.max_connections < 0 or (only and account != only):
                continue
            counts[account] = counts.get(account, 0) + 1
            if counts[account] > own.max_connections:
                self._context.log.error(f"{session.name} - maximum account active connections exceeded")
                session.refuse(
                    "maximum account active connections exceeded", CloseReason.MAX_ACCOUNT_CONNECTIONS
                )
