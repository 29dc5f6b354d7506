"""accountz and accstatz: the accounts of the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.errors import MisuseError
from penstock.protocol.durations import format_time
from penstock.server.monitoring.pages.connz import account_of
from penstock.server.monitoring.pages.page_options import Page, PageOptions, Query, flag, header
from penstock.server.monitoring.pages.subsz import index_stats
from penstock.server.monitoring.pages.varz import traffic

if TYPE_CHECKING:
    from penstock.server.monitoring.monitored_server import MonitoredServer


class AccountzOptions(PageOptions, frozen=True, kw_only=True):
    """Options of accountz: with an account its details, without one all names."""

    account: str = ""

    @classmethod
    def from_query(cls, query: Query) -> AccountzOptions:
        return cls(account=query.get("acc", ""))


class AccountStatzOptions(PageOptions, frozen=True, kw_only=True):
    """Options of accstatz: which accounts, and whether to include those without connections."""

    accounts: list[str] = []
    include_unused: bool = False

    @classmethod
    def from_query(cls, query: Query) -> AccountStatzOptions:
        return cls(include_unused=flag(query, "unused"))


def accountz(server: MonitoredServer, options: AccountzOptions) -> Page:
    """All account names, or one account in detail. Raises MisuseError for an unknown account."""
    page = header(server)
    if server.context.options.has_system_account:
        page["system_account"] = server.context.options.system_account
    if options.account:
        return page | {"account_detail": account_info(server, options.account)}
    return page | {"accounts": list(server.accounts)}


def account_info(server: MonitoredServer, name: str) -> Page:
    """Details of one account. Raises MisuseError for an unknown account."""
    account = server.accounts.get(name)
    if account is None:
        raise MisuseError(f"Account {name} does not exist")
    service = server.jetstream
    known = server.accounts.operators.known.get(name) if server.accounts.operators is not None else None
    return {
        "account_name": name,
        "update_time": format_time(server.started_ns if known is None else known.updated_ns),
        "is_system": name == server.context.options.system_account,
        "expired": known is not None and known.expired,
        "complete": True,
        "jetstream_enabled": service is not None and service.is_enabled(name),
        "leafnode_connections": num_leafs(server, name),
        "client_connections": num_connections(server, name),
        "subscriptions": account.index.count,
        **_shared(server, name),
        "name_tag": server.accounts.shown_name(name),
        **_token_of(server, name),
        "sublist_stats": index_stats([account.index]),
    }


def _shared(server: MonitoredServer, name: str) -> Page:
    """Exports, imports and mappings."""
    own, mappings = server.accounts.options_of(name), server.accounts.mappings_of(name)
    if not mappings and (own is None or not (own.exports or own.imports)):
        return {}
    from penstock.server.monitoring.pages.import_table import sharing

    return sharing(server, own, mappings)


def _token_of(server: MonitoredServer, name: str) -> Page:
    """Fields from an account's token."""
    known = server.accounts.operators.known.get(name) if server.accounts.operators is not None else None
    if known is None or not known.token:
        return {}
    return {
        "issuer_key": known.claims.issuer,
        "jwt": known.token,
        "decoded_jwt": msgspec.to_builtins(known.claims),
    }


def accstatz(server: MonitoredServer, options: AccountStatzOptions) -> Page:
    """Traffic of accounts."""
    names = options.accounts or list(server.accounts)
    shown = [name for name in names if name in server.accounts]
    if not options.include_unused:
        shown = [name for name in shown if num_connections(server, name)]
    return header(server) | {"account_statz": [account_stat(server, name) for name in shown]}


def account_stat(server: MonitoredServer, name: str) -> Page:
    """Connections and traffic of one account."""
    sums, connections = traffic(server, name), num_connections(server, name)
    return {
        "acc": name,
        "name": name,
        "conns": connections,
        "leafnodes": num_leafs(server, name),
        "total_conns": connections + num_leafs(server, name),
        "num_subscriptions": server.accounts[name].index.count,
        "sent": _by_kind(sums.out_msgs, sums.out_bytes),
        "received": _by_kind(sums.in_msgs, sums.in_bytes),
        "slow_consumers": server.sessions.totals.of_account(name).slow_consumers,
    }


def num_connections(server: MonitoredServer, name: str) -> int:
    """Open connections of an account."""
    return sum(account_of(session) == name for session in server.sessions.values())


def num_leafs(server: MonitoredServer, name: str) -> int:
    """Leaf node links of an account."""
    return server.links.leafs.num_links(name) if server.links.leafs is not None else 0


def _by_kind(msgs: int, size: int) -> Page:
    none = {"msgs": 0, "bytes": 0}
    return {"msgs": msgs, "bytes": size, "gateways": none, "routes": none, "leafs": none}
