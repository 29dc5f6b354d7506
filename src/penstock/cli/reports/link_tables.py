"""Tables of links between servers: routes, leaf nodes and gateways, from ROUTEZ, LEAFZ and GATEWAYZ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from penstock.cli.framework.value_texts import number_text, size_text
from penstock.cli.reports.server_tables import Page, ServerTable
from penstock.cli.reports.system_requests import SystemAnswer

ROUTE_COLUMNS = {
    "Server": "server", "Cluster": "cluster", "Name": "remote_name", "Account": "account", "Address": "ip",
    "ID": "rid", "Uptime": "uptime", "RTT": "rtt", "Subs": "subscriptions", "Bytes In": "in_bytes",
    "Bytes Out": "out_bytes",
}  # fmt: skip
"""Titles of columns, and the fields of a link that they show."""
LEAF_COLUMNS = {
    "Server": "server", "Name": "name", "Account": "account", "Address": "ip", "RTT": "rtt",
    "Msgs In": "in_msgs", "Msgs Out": "out_msgs", "Bytes In": "in_bytes", "Bytes Out": "out_bytes",
    "Subs": "subscriptions",
}  # fmt: skip
GATEWAY_COLUMNS = {
    "Server": "server", "Cluster": "cluster", "Gateway": "gateway", "Direction": "direction",
    "Connection": "name", "Address": "ip", "ID": "cid", "Uptime": "uptime", "RTT": "rtt",
    "Bytes In": "in_bytes", "Bytes Out": "out_bytes",
}  # fmt: skip
_NUMBERS = "Subs,Msgs In,Msgs Out,Bytes In,Bytes Out,ID"


def _text(*fields: str) -> Callable[[Page], Any]:
    """A key that sorts by texts. Those of one server stay together."""
    return lambda one: " ".join(str(one.get(field, "")) for field in (*fields, "server"))


def _number(field: str) -> Callable[[Page], Any]:
    return lambda one: one.get(field, 0)


ROUTE_KEYS: dict[str, Callable[[Page], Any]] = {
    "server": _text("server", "remote_name"),
    "cluster": _text("cluster"),
    "name": _text("remote_name"),
    "account": _text("account"),
    "subs": _number("subscriptions"),
    "in-bytes": _number("in_bytes"),
    "out-bytes": _number("out_bytes"),
}
LEAF_KEYS: dict[str, Callable[[Page], Any]] = {
    "server": _text("server", "name"),
    "name": _text("name"),
    "account": _text("account"),
    "subs": _number("subscriptions"),
    "in-bytes": _number("in_bytes"),
    "out-bytes": _number("out_bytes"),
    "in-msgs": _number("in_msgs"),
    "out-msgs": _number("out_msgs"),
}
GATEWAY_KEYS: dict[str, Callable[[Page], Any]] = {
    "server": _text("server", "gateway"),
    "cluster": _text("cluster", "gateway"),
}


def links_of(answers: Iterable[SystemAnswer], field: str) -> list[dict[str, Any]]:
    """The links in a field of the pages; each also has the name of its server and that of its cluster."""
    return [_link(answer, one) for answer in answers for one in answer.data.get(field) or []]


def gateway_links(answers: Iterable[SystemAnswer]) -> list[dict[str, Any]]:
    """Connections of GATEWAYZ pages; each also has `gateway`, the other cluster, and its `direction`."""
    found = []
    for answer in answers:
        for name, remote in (answer.data.get("outbound_gateways") or {}).items():
            found.append(_link(answer, _connection(remote) | {"gateway": name, "direction": "outbound"}))
        for name, remotes in (answer.data.get("inbound_gateways") or {}).items():
            found += [
                _link(answer, _connection(remote) | {"gateway": name, "direction": "inbound"})
                for remote in remotes or []
            ]
    return found


def _connection(remote: Mapping[str, Any]) -> dict[str, Any]:
    found = remote.get("connection")
    return dict(found) if isinstance(found, dict) else {}


def _link(answer: SystemAnswer, one: Mapping[str, Any]) -> dict[str, Any]:
    return {**one, "server": answer.server_name, "cluster": answer.server.get("cluster", "")}


def link_table(links: Sequence[Page], title: str, columns: Mapping[str, str]) -> ServerTable:
    """A table of links. columns: their titles, and the field that each shows."""
    rows: list[tuple[object, ...]] = [tuple(_cell(one, field) for field in columns.values()) for one in links]
    return ServerTable(title, tuple(columns), rows, _NUMBERS)


def _cell(one: Page, field: str) -> object:
    value = one.get(field, "")
    if field.endswith("_bytes"):
        return size_text(value or 0)
    if field == "ip" and value:
        return f"{value}:{one.get('port')}"
    return number_text(value) if isinstance(value, int) and not isinstance(value, bool) else value
