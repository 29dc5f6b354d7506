"""subsz: subscriptions of all accounts, or of one.

`num_subscriptions` includes the server's own subscriptions; the list does not, because they have no
connection. The cache holds subjects that several filters match. A subject of one filter is found as fast
without the cache, and is no cache hit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import MisuseError
from penstock.protocol.subjects import is_valid_subject, matches
from penstock.server.monitoring.pages.connz import account_of, describe
from penstock.server.monitoring.pages.page_options import (
    Page,
    PageOptions,
    Query,
    Steps,
    flag,
    header,
    number,
    paging,
    pieces,
    text,
)  # fmt: skip

if TYPE_CHECKING:
    from penstock.kernels.routing.subscription_index import SubscriptionIndex
    from penstock.server.monitoring.monitored_server import MonitoredServer


class SubszOptions(PageOptions, frozen=True, kw_only=True):
    """Options of subsz; `test` selects the subscriptions that match this subject."""

    offset: int = 0
    limit: int = 0
    subscriptions: bool = False
    account: str = ""
    test: str = ""

    @classmethod
    def from_query(cls, query: Query) -> SubszOptions:
        return cls(
            offset=number(query, "offset"),
            limit=number(query, "limit"),
            subscriptions=flag(query, "subs"),
            account=query.get("acc", ""),
            test=query.get("test", ""),
        )


def index_stats(indexes: list[SubscriptionIndex]) -> Page:
    """Counters of subscription indexes, summed."""
    count = sum(index.count for index in indexes)
    changes = sum(index.generation for index in indexes)  # incremented by every insert and remove
    lookups = sum(index.num_lookups for index in indexes)
    hits = lookups - sum(index.num_walks for index in indexes)
    cached = [index.cache_fanout() for index in indexes]
    entries, receivers = sum(one[0] for one in cached), sum(one[1] for one in cached)
    return {
        "num_subscriptions": count,
        "num_cache": entries,
        "num_inserts": (changes + count) // 2,
        "num_removes": (changes - count) // 2,
        "num_matches": lookups,
        "cache_hit_rate": hits / lookups if lookups else 0.0,
        "max_fanout": max((one[2] for one in cached), default=0),
        "avg_fanout": receivers / entries if entries else 0.0,
    }


def subsz(server: MonitoredServer, options: SubszOptions) -> Steps:
    """Subscriptions. Raises MisuseError for an invalid test subject."""
    if options.test and not is_valid_subject(options.test):
        raise MisuseError(f"invalid test subject, must be valid publish subject: {options.test}")
    return _subsz(server, options)


def _subsz(server: MonitoredServer, options: SubszOptions) -> Steps:
    offset, limit = paging(options.offset, options.limit)
    accounts = [account for name, account in server.accounts.items() if options.account in ("", name)]
    page = header(server) | index_stats([account.index for account in accounts])
    page |= {"total": 0, "offset": offset, "limit": limit}
    if not options.subscriptions:
        return page
    listed: list[Page] = []
    total = 0
    for sessions in pieces(server.sessions.values(), 16):
        for session in sessions:
            if options.account not in ("", account_of(session)):
                continue
            for some in pieces(session.subscriptions.values()):
                for one in some:
                    if options.test and not matches(text(one.subject), options.test):
                        continue
                    if offset <= total < offset + limit:
                        listed.append(describe(one, session.cid, account_of(session)))
                    total += 1
                yield
        yield
    page["total"] = total
    if listed:
        page["subscriptions_list"] = listed
    return page
