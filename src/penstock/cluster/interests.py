"""What each account announces to other servers, over whatever links.

An account's index has one announcer, which routes and leaf nodes share: a subscription of a leaf node is
announced to the cluster, and one of another server of the cluster to leaf nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from penstock.kernels.wire.link_interest import LocalInterest

if TYPE_CHECKING:
    from penstock.kernels.routing.subscription_index import SubscriptionIndex
    from penstock.routing.account import Account


class Accounts(Protocol):
    """The accounts of the server."""

    def get(self, name: str) -> Account | None:
        """The account, if it exists."""

    def values(self) -> Iterable[Account]: ...
    def look_up(self, name: str) -> Account | None:
        """The account; may create one that is configured but was not in use. None = unknown."""

    def expect(self, name: str) -> Account | None:
        """An account that is not configured here, for the interest that another server announces in it: a
        reload may configure it, and interest is announced once. None = no room for more."""


class AccountInterests:
    """The announcers of all accounts.

    Args:
        accounts: the accounts of the server.
        counts_remote: whether there may be leaf nodes or gateways, which get the interest of routes as well.
    """

    def __init__(self, accounts: Accounts, *, counts_remote: bool) -> None:
        self._accounts = accounts
        self._counts_remote = counts_remote
        self._local: dict[str, LocalInterest] = {}

    @property
    def local(self) -> Mapping[str, LocalInterest]:
        """What is announced, by account."""
        return self._local

    def account(self, name: str) -> Account | None:
        """The account of that name; None = unknown."""
        return self._accounts.look_up(name)

    def index_of(self, name: bytes) -> SubscriptionIndex | None:
        """The index of an account that a peer names; None = unknown."""
        account = self._accounts.look_up(name.decode("utf-8", "replace"))
        return None if account is None else account.index

    def expected_index_of(self, name: bytes) -> SubscriptionIndex | None:
        """The same, and that of an account that is expected; None = no room for more."""
        found = self.index_of(name)
        if found is not None:
            return found
        account = self._accounts.expect(name.decode("utf-8", "replace"))
        return None if account is None else account.index

    def watch(self, account: Account) -> None:
        """Counts and announces the subscriptions of an account from now on."""
        if account.name in self._local:
            return
        local = LocalInterest(account.name.encode(), self._counts_remote)
        local.count_all(account.index)
        account.index.announcer = local
        self._local[account.name] = local
        if account.index.replies is not None:
            self.expect_replies(account)

    def expect_replies(self, account: Account) -> None:
        """Announces the subjects of replies to this account's requests: a service may answer on another
        server."""
        local = self._local.get(account.name)
        prefix = getattr(account.index.replies, "prefix", b"")
        if local is not None and prefix and prefix + b">" not in local.counted():
            local.expect(prefix + b">")

    def forget(self, account: Account) -> None:
        """Removes the announcer of an account that was removed."""
        account.index.announcer = None
        self._local.pop(account.name, None)
