"""Tables of servers: what `server list` and `server report` show, from the pages that servers answer with.

A table has a title, columns, rows and the names of right-aligned columns. Rows are sorted by the value of a
key, largest first, unless the key is a name; `reverse` turns that round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.cli.framework.value_texts import ago_text, duration_text, number_text, size_text
from penstock.cli.reports.system_requests import SystemAnswer
from penstock.errors import MisuseError

Page = Mapping[str, Any]


@dataclass(frozen=True)
class ServerTable:
    """A table for people. numbers: right-aligned columns, with commas between."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[object, ...]]
    numbers: str = ""


def sorted_by(
    found: Iterable[Page], keys: Mapping[str, Callable[[Page], Any]], key: str, *, reverse: bool
) -> list[Page]:
    """Pages in the order of a key. Raises MisuseError for an unknown one."""
    if key not in keys:
        raise MisuseError(f"--sort is {key!r}; it is one of {', '.join(keys)}")
    order = list(found)
    descending = bool(order) and not isinstance(keys[key](order[0]), str)
    return sorted(order, key=keys[key], reverse=descending is not reverse)


# --- server list -----------------------------------------------------------------------------------


def _stats(page: Page) -> Page:
    return page.get("statsz") or {}


def _server(page: Page) -> Page:
    return page.get("server") or {}


SERVER_KEYS: dict[str, Callable[[Page], Any]] = {
    "rtt": lambda page: -page["rtt_s"],
    "name": lambda page: str(_server(page).get("name", "")),
    "cluster": lambda page: f"{_server(page).get('cluster', '')} {_server(page).get('name', '')}",
    "conns": lambda page: _stats(page).get("connections", 0),
    "subs": lambda page: _stats(page).get("subscriptions", 0),
    "routes": lambda page: len(_stats(page).get("routes") or []),
    "gws": lambda page: len(_stats(page).get("gateways") or []),
    "mem": lambda page: _stats(page).get("mem", 0),
    "cpu": lambda page: _stats(page).get("cpu", 0),
    "slow": lambda page: _stats(page).get("slow_consumers", 0),
    "uptime": lambda page: str(_stats(page).get("start", "")),
}


def server_table(answers: Sequence[SystemAnswer], *, sort: str, reverse: bool) -> ServerTable:
    """All servers with their load, from STATSZ."""
    pages = [{**answer.page, "rtt_s": answer.rtt_s} for answer in answers]
    rows: list[tuple[object, ...]] = []
    for page in sorted_by(pages, SERVER_KEYS, sort, reverse=reverse):
        server, stats = _server(page), _stats(page)
        jetstream = (server.get("domain") or "yes") if server.get("jetstream") else "no"
        rows.append((
            server.get("name", ""), server.get("cluster", ""), server.get("host", ""), server.get("ver", ""),
            jetstream, number_text(stats.get("connections", 0)), number_text(stats.get("subscriptions", 0)),
            len(stats.get("routes") or []), len(stats.get("gateways") or []), size_text(stats.get("mem", 0)),
            f"{stats.get('cpu', 0):.0f}", stats.get("cores", 0), number_text(stats.get("slow_consumers", 0)),
            ago_text(str(stats.get("start", ""))), duration_text(page["rtt_s"]),
        ))  # fmt: skip
    total = _total(pages)
    rows.append((
        "", number_text(len({_server(page).get("cluster") for page in pages} - {None, ""})), len(pages), "",
        sum(bool(_server(page).get("jetstream")) for page in pages), number_text(total["connections"]),
        number_text(total["subscriptions"]), "", "", size_text(total["mem"]), "", "",
        number_text(total["slow_consumers"]), "", "",
    ))  # fmt: skip
    columns = (
        "Name", "Cluster", "Host", "Version", "JS", "Conns", "Subs", "Routes", "GWs", "Mem", "CPU %", "Cores",
        "Slow", "Uptime", "RTT",
    )  # fmt: skip
    return ServerTable("Server Overview", columns, rows, "Conns,Subs,Routes,GWs,Mem,CPU %,Cores,Slow")


def _total(pages: Iterable[Page]) -> dict[str, int]:
    names = ("connections", "subscriptions", "mem", "slow_consumers")
    return {name: sum(_stats(page).get(name, 0) for page in pages) for name in names}


# --- server report connections, accounts -----------------------------------------------------------

CONNECTION_KEYS: dict[str, Callable[[Page], Any]] = {
    "subs": lambda one: one.get("subscriptions", 0),
    "in-bytes": lambda one: one.get("in_bytes", 0),
    "out-bytes": lambda one: one.get("out_bytes", 0),
    "in-msgs": lambda one: one.get("in_msgs", 0),
    "out-msgs": lambda one: one.get("out_msgs", 0),
    "uptime": lambda one: str(one.get("start", "")),
    "cid": lambda one: one.get("cid", 0),
    "pending": lambda one: one.get("pending_bytes", 0),
    "idle": lambda one: str(one.get("last_activity", "")),
}


def connections_of(answers: Iterable[SystemAnswer]) -> list[dict[str, Any]]:
    """The connections of CONNZ pages; each also has the name of its server."""
    return [
        {**one, "server_name": answer.server_name, "cluster": answer.server.get("cluster", "")}
        for answer in answers
        for one in answer.data.get("connections") or []
    ]


def connection_table(found: Sequence[Page], *, title: str = "Connections") -> ServerTable:
    """Connections with their traffic."""
    rows: list[tuple[object, ...]] = [
        (
            one.get("cid", 0), one.get("name", ""), one["server_name"], f"{one.get('ip')}:{one.get('port')}",
            one.get("account", ""), one.get("authorized_user", ""), one.get("uptime", ""),
            number_text(one.get("in_msgs", 0)), number_text(one.get("out_msgs", 0)),
            size_text(one.get("in_bytes", 0)), size_text(one.get("out_bytes", 0)),
            number_text(one.get("subscriptions", 0)), one.get("reason", ""),
        )
        for one in found
    ]  # fmt: skip
    columns = (
        "CID", "Name", "Server", "Address", "Account", "User", "Uptime", "In Msgs", "Out Msgs", "In Bytes",
        "Out Bytes", "Subs", "Reason",
    )  # fmt: skip
    return ServerTable(title, columns, rows, "CID,In Msgs,Out Msgs,In Bytes,Out Bytes,Subs")


ACCOUNT_KEYS: dict[str, Callable[[Page], Any]] = {
    "subs": lambda one: one["subscriptions"],
    "conns": lambda one: one["connections"],
    "in-bytes": lambda one: one["in_bytes"],
    "out-bytes": lambda one: one["out_bytes"],
    "in-msgs": lambda one: one["in_msgs"],
    "out-msgs": lambda one: one["out_msgs"],
}


def account_totals(found: Iterable[Page]) -> list[dict[str, Any]]:
    """Traffic per account, from its connections."""
    names = ("subscriptions", "in_bytes", "out_bytes", "in_msgs", "out_msgs")
    totals: dict[str, dict[str, Any]] = {}
    for one in found:
        name = str(one.get("account") or "$G")
        total = totals.setdefault(name, {"account": name, "connections": 0, **dict.fromkeys(names, 0)})
        total["connections"] += 1
        for key in names:
            total[key] += one.get(key, 0)
    return list(totals.values())


def account_table(found: Sequence[Page]) -> ServerTable:
    """Accounts with their traffic."""
    rows: list[tuple[object, ...]] = [
        (one["account"], number_text(one["connections"]), number_text(one["in_msgs"]),
         number_text(one["out_msgs"]), size_text(one["in_bytes"]), size_text(one["out_bytes"]),
         number_text(one["subscriptions"]))
        for one in found
    ]  # fmt: skip
    columns = ("Account", "Connections", "In Msgs", "Out Msgs", "In Bytes", "Out Bytes", "Subs")
    return ServerTable(f"{len(rows)} Accounts Overview", columns, rows, ",".join(columns[1:]))


# --- server report jetstream, health ---------------------------------------------------------------

JETSTREAM_KEYS: dict[str, Callable[[Page], Any]] = {
    "cluster": lambda one: f"{_server(one).get('cluster', '')} {_server(one).get('name', '')}",
    "name": lambda one: str(_server(one).get("name", "")),
    "streams": lambda one: _data(one).get("streams", 0),
    "consumers": lambda one: _data(one).get("consumers", 0),
    "msgs": lambda one: _data(one).get("messages", 0),
    "mbytes": lambda one: _data(one).get("bytes", 0),
    "mem": lambda one: _data(one).get("memory", 0),
    "file": lambda one: _data(one).get("storage", 0),
    "api": lambda one: _data(one).get("api", {}).get("total", 0),
    "err": lambda one: _data(one).get("api", {}).get("errors", 0),
}


def _data(page: Page) -> Page:
    return page.get("data") or {}


def jetstream_table(answers: Iterable[SystemAnswer], *, sort: str, reverse: bool) -> ServerTable:
    """JetStream of all servers that have it, from JSZ."""
    pages = [answer.page for answer in answers if not answer.data.get("disabled")]
    rows: list[tuple[object, ...]] = []
    for page in sorted_by(pages, JETSTREAM_KEYS, sort, reverse=reverse):
        data, server = _data(page), _server(page)
        api = data.get("api") or {}
        meta = data.get("meta_cluster") or {}
        name = server.get("name", "")
        rows.append((
            f"{name}*" if meta.get("leader") == name and name else name, server.get("cluster", ""),
            number_text(data.get("streams", 0)), number_text(data.get("consumers", 0)),
            number_text(data.get("messages", 0)), size_text(data.get("bytes", 0)),
            size_text(data.get("memory", 0)), size_text(data.get("storage", 0)),
            number_text(api.get("total", 0)), number_text(api.get("errors", 0)),
            number_text(meta.get("pending", 0)),
        ))  # fmt: skip
    columns = (
        "Server", "Cluster", "Streams", "Consumers", "Messages", "Bytes", "Memory", "File", "API Req",
        "API Err", "Pending",
    )  # fmt: skip
    return ServerTable("JetStream Summary", columns, rows, ",".join(columns[2:]))


def meta_table(answers: Iterable[SystemAnswer]) -> ServerTable | None:
    """The servers of the group that manages JetStream, from the JSZ page of its leader; None without one."""
    for answer in answers:
        meta = answer.data.get("meta_cluster") or {}
        if not meta.get("leader") or meta["leader"] != answer.server_name:
            continue
        rows: list[tuple[object, ...]] = [
            (answer.server_name, meta.get("peer", ""), "yes", "true", "true", "", "")
        ]
        for one in meta.get("replicas") or []:
            online = "false" if one.get("offline") else "true"
            active = duration_text(one.get("active", 0) / 1e9)
            current = str(bool(one.get("current"))).lower()
            lag = number_text(one.get("lag", 0))
            rows.append((one.get("name", ""), one.get("peer", ""), "", current, online, active, lag))
        columns = ("Connection Name", "ID", "Leader", "Current", "Online", "Active", "Lag")
        return ServerTable("RAFT Meta Group Information", columns, sorted(rows, key=str), "Lag")
    return None


def leader_table(answers: Iterable[SystemAnswer]) -> ServerTable:
    """How many streams and consumers each server leads, from JSZ pages with streams and consumers.

    Every replica lists its streams, so each counts on its leader's page alone. A stream without replicas has
    no group, and its server leads it.
    """
    rows: list[tuple[object, ...]] = []
    for answer in sorted(answers, key=lambda one: one.server_name):
        streams = [one for account in answer.data.get("account_details") or []
                   for one in account.get("stream_detail") or []]  # fmt: skip
        consumers = [one for stream in streams for one in stream.get("consumer_detail") or []]
        counts = (_led(found, answer.server_name) for found in (streams, consumers))
        rows.append((answer.server_name, answer.server.get("cluster", ""), *map(number_text, counts)))
    columns = ("Server", "Cluster", "Stream Leaders", "Consumer Leaders")
    return ServerTable("Leaders", columns, rows, ",".join(columns[2:]))


def _led(found: Iterable[Page], server_name: str) -> int:
    leaders = ((one.get("cluster") or {}).get("leader") or server_name for one in found)
    return sum(leader == server_name for leader in leaders)


def health_table(answers: Iterable[SystemAnswer], *, reverse: bool = False) -> ServerTable:
    """Health of all servers, from HEALTHZ."""
    rows: list[tuple[object, ...]] = []
    for answer in sorted(answers, key=lambda one: one.server_name, reverse=reverse):
        data, server = answer.data, answer.server
        status = f"{data.get('status', 'unknown')} ({data.get('status_code', 0)})"
        error = str(data.get("error", ""))
        head = (answer.server_name, server.get("cluster", ""), server.get("domain", ""), status)
        rows.append((*head, "", error))
        rows += [
            ("", "", "", "", one.get("type", ""), one.get("error", "")) for one in data.get("errors") or []
        ]
    columns = ("Server", "Cluster", "Domain", "Status", "Type", "Error")
    return ServerTable("Health Report", columns, rows)


def is_healthy(answer: SystemAnswer) -> bool:
    """Whether a HEALTHZ answer says that the server is healthy."""
    return answer.data.get("status") == "ok"


# --- generic pages ---------------------------------------------------------------------------------


def page_sections(page: Page) -> list[tuple[str, list[tuple[str, object]]]]:
    """A page as sections for people: its plain values, then one section for each object in it."""
    plain = [(key, _cell(value)) for key, value in page.items() if not isinstance(value, dict)]
    nested = [
        (key, [(name, _cell(one)) for name, one in value.items()])
        for key, value in page.items()
        if isinstance(value, dict) and value
    ]
    return [("", plain), *nested]


def _cell(value: object) -> object:
    import msgspec

    if isinstance(value, dict | list):
        return msgspec.json.encode(value).decode()
    return str(value).lower() if isinstance(value, bool) else value
