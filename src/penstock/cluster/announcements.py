"""What each account announces, and over which links.

An account's interest goes to each peer over one link: the dedicated one if the account is pinned, the pooled
one with the account's number otherwise, or the only one of a peer without a pool. The peer's interest and
messages may come over any link, because frames name the account.

Invariant: a peer learns of an account over at most one link at a time, so it never counts a subscription
twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.cluster.interests import AccountInterests
    from penstock.cluster.route_link import RouteLink
    from penstock.kernels.routing.subscription_index import SubscriptionIndex
    from penstock.kernels.wire.link_interest import LocalInterest
    from penstock.routing.account import Account

FNV_OFFSET = 0x811C9DC5
FNV_PRIME = 0x01000193


def pool_index(account: str, pool_size: int) -> int:
    """The number of the pooled link that carries the account: FNV-1a, as on the official server."""
    if pool_size <= 1:
        return 0
    value = FNV_OFFSET
    for byte in account.encode():
        value = (value ^ byte) * FNV_PRIME & 0xFFFFFFFF
    return value % pool_size


class ClusterInterest:
    """The announcements of all accounts over routes.

    Args:
        interests: what the accounts announce.
        carriers: callable(account name) -> the links that carry its interest, one for each peer.
        may_import: callable() -> the check of announced subjects, None = all are allowed.
    """

    def __init__(
        self,
        interests: AccountInterests,
        carriers: Callable[[str], Iterable[RouteLink]],
        may_import: Callable[[], Callable[[bytes], bool] | None],
    ) -> None:
        self._interests = interests
        self._local = interests.local
        self._carriers = carriers
        self._may_import = may_import
        self._fed: dict[str, set[RouteLink]] = {}

    @property
    def local(self) -> Mapping[str, LocalInterest]:
        """What is announced, by account."""
        return self._local

    def watch(self, account: Account) -> None:
        """Announces the subscriptions of a new account."""
        self._interests.watch(account)
        self._fed[account.name] = set()
        self.update(account.name)

    def expect_replies(self, account: Account) -> None:
        """Announces the subjects of replies to this account's requests."""
        self._interests.expect_replies(account)

    def forget(self, account: Account) -> None:
        """Ends the announcements of an account that was removed."""
        self._interests.forget(account)
        self._fed.pop(account.name, None)

    def index_of(self, name: bytes) -> SubscriptionIndex | None:
        """The index of an account that a peer names, which may be configured here later; None = no room."""
        return self._interests.expected_index_of(name)

    def update(self, name: str) -> None:
        """Starts and ends announcements so that exactly the links that carry the account get them."""
        local = self._local.get(name)
        if local is None or name not in self._fed:
            return
        fed, wanted = self._fed[name], set(self._carriers(name))
        # Ends come first: a peer counts a subscription that is announced on two links twice.
        for link in sorted(fed - wanted, key=lambda link: link.cid):
            local.disconnect(link.sink, retract=True)
        for link in sorted(wanted - fed, key=lambda link: link.cid):
            local.connect(link.sink, bool(link.account), self._may_import())
        self._fed[name] = wanted

    def update_all(self) -> None:
        for name in tuple(self._fed):
            self.update(name)

    def link_closed(self, link: RouteLink) -> None:
        """Announces nothing more on the link."""
        for name, fed in self._fed.items():
            if link in fed:
                fed.discard(link)
                self._local[name].disconnect(link.sink)

    def repeat(self, link: RouteLink) -> None:
        """Announces again what the link carries: the peer accepts other subjects than before."""
        for name, fed in self._fed.items():
            if link in fed:
                self._local[name].repeat(link.sink)

    def restrict(self) -> None:
        """Applies changed permissions: announces the difference."""
        may_import = self._may_import()
        for name, fed in self._fed.items():
            for link in fed:
                self._local[name].restrict(link.sink, may_import)
