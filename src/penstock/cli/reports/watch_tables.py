"""Tables of `server watch`: rows from the statistics of servers and accounts, as JSON and for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from penstock.cli.framework.value_texts import ago_text, number_text, size_text
from penstock.cli.reports.server_tables import Page, ServerTable
from penstock.cli.reports.system_requests import SystemAnswer

Row = dict[str, Any]
Keys = dict[str, Callable[[Page], Any]]


def _by(*fields: str) -> Callable[[Page], Any]:
    return lambda row: tuple(row[field] for field in (*fields, "name"))


_TRAFFIC: Keys = {
    "conns": _by("connections"),
    "subs": _by("subscriptions"),
    "slow": _by("slow_consumers"),
    "sentb": _by("sent_bytes"),
    "sentm": _by("sent_msgs"),
    "recvb": _by("received_bytes"),
    "recvm": _by("received_msgs"),
}
SERVER_KEYS: Keys = _TRAFFIC | {
    "name": _by(),
    "mem": _by("mem"),
    "cpu": _by("cpu"),
    "route": _by("routes"),
    "gway": _by("gateways"),
}
ACCOUNT_KEYS: Keys = _TRAFFIC
JETSTREAM_KEYS: Keys = {
    "assets": _by("ha_assets"),
    "mem": _by("memory"),
    "file": _by("storage"),
    "api": _by("api_total"),
}


def _traffic(stats: Page) -> Row:
    sent, received = stats.get("sent") or {}, stats.get("received") or {}
    return {
        "slow_consumers": stats.get("slow_consumers", 0),
        "sent_msgs": sent.get("msgs", 0),
        "sent_bytes": sent.get("bytes", 0),
        "received_msgs": received.get("msgs", 0),
        "received_bytes": received.get("bytes", 0),
    }


def _traffic_cells(row: Page) -> tuple[str, str]:
    return (
        f"{number_text(row['sent_msgs'])} / {size_text(row['sent_bytes'])}",
        f"{number_text(row['received_msgs'])} / {size_text(row['received_bytes'])}",
    )


def _title(what: str, rows: Sequence[Page], shown: int, sort: str) -> str:
    number = str(len(rows)) if len(rows) <= shown else f"{shown} of {len(rows)}"
    return f"{number} {what} by {sort} at {datetime.now().astimezone():%Y-%m-%d %H:%M:%S}"


def _sums(rows: Iterable[Row], fields: Iterable[str]) -> Row:
    found = list(rows)
    return {field: sum(row[field] for row in found) for field in fields}


# --- servers -----------------------------------------------------------------------------------------


def server_rows(answers: Iterable[SystemAnswer]) -> list[Row]:
    """A row for each server, from STATSZ."""
    return [
        {
            "name": answer.server_name,
            "cluster": answer.server.get("cluster", ""),
            "connections": answer.data.get("connections", 0),
            "subscriptions": answer.data.get("subscriptions", 0),
            "mem": answer.data.get("mem", 0),
            "cpu": answer.data.get("cpu", 0),
            "cores": answer.data.get("cores", 0),
            "routes": len(answer.data.get("routes") or []),
            "gateways": len(answer.data.get("gateways") or []),
            **_traffic(answer.data),
        }
        for answer in answers
    ]


def server_table(rows: Sequence[Row], *, shown: int, sort: str) -> ServerTable:
    """Servers, and the sums of all of them."""
    cells: list[tuple[object, ...]] = [
        (row["name"], number_text(row["connections"]), number_text(row["subscriptions"]),
         number_text(row["slow_consumers"]), size_text(row["mem"]), f"{row['cpu']:.0f}", row["cores"],
         row["routes"], row["gateways"], *_traffic_cells(row))
        for row in rows[:shown]
    ]  # fmt: skip
    fields = ("connections", "subscriptions", "mem", *_traffic({}))
    total = _sums(rows, fields)
    cells.append((
        "All servers", number_text(total["connections"]), number_text(total["subscriptions"]),
        number_text(total["slow_consumers"]), size_text(total["mem"]), "", "", "", "", *_traffic_cells(total),
    ))  # fmt: skip
    columns = (
        "Server", "Connections", "Subscriptions", "Slow", "Memory", "CPU %", "Cores", "Routes", "Gateways",
        "Sent", "Received",
    )  # fmt: skip
    return ServerTable(_title("servers", rows, shown, sort), columns, cells, ",".join(columns[1:]))


# --- accounts ----------------------------------------------------------------------------------------


def account_rows(answers: Iterable[SystemAnswer]) -> list[Row]:
    """A row for each account that has connections, with the sums of all servers, from STATZ."""
    found: dict[str, Row] = {}
    for answer in answers:
        for one in answer.data.get("account_statz") or []:
            row = {
                "connections": one.get("conns", 0),
                "leafnodes": one.get("leafnodes", 0),
                "subscriptions": one.get("num_subscriptions", 0),
                **_traffic(one),
            }
            key = str(one.get("acc", ""))
            before = found.get(key)
            head = {"account": key, "name": one.get("name") or key, "servers": 1}
            if before is not None:
                row = _sums((before, row), row)
                head["servers"] = before["servers"] + 1
            found[key] = head | row
    return list(found.values())


def account_table(rows: Sequence[Row], *, shown: int, sort: str) -> ServerTable:
    """Accounts with their connections and traffic."""
    cells: list[tuple[object, ...]] = [
        (row["name"], row["servers"], number_text(row["connections"]), number_text(row["leafnodes"]),
         number_text(row["subscriptions"]), number_text(row["slow_consumers"]), *_traffic_cells(row))
        for row in rows[:shown]
    ]  # fmt: skip
    columns = (
        "Account", "Servers", "Connections", "Leafnodes", "Subscriptions", "Slow", "Sent", "Received"
    )  # fmt: skip
    return ServerTable(_title("accounts", rows, shown, sort), columns, cells, ",".join(columns[1:]))


# --- JetStream ---------------------------------------------------------------------------------------


def jetstream_rows(answers: Iterable[SystemAnswer]) -> list[Row]:
    """A row for each server with JetStream, from STATSZ."""
    found = []
    for answer in answers:
        page = answer.data.get("jetstream")
        if page:
            found.append(_jetstream_row(answer.server_name, page.get("stats") or {}, page.get("meta") or {}))
    return found


def _jetstream_row(name: str, stats: Page, meta: Page) -> Row:
    api: Mapping[str, Any] = stats.get("api") or {}
    snapshot: Mapping[str, Any] = meta.get("snapshot") or {}
    return {
        "name": name,
        "leader": bool(name) and meta.get("leader") == name,
        "ha_assets": stats.get("ha_assets", 0),
        "memory": stats.get("memory", 0),
        "storage": stats.get("storage", 0),
        "api_total": api.get("total", 0),
        "api_errors": api.get("errors", 0),
        "pending": meta.get("pending", 0),
        "pending_requests": meta.get("pending_requests", 0),
        "snapshot_time": snapshot.get("last_time", ""),
    }


def jetstream_table(rows: Sequence[Row], *, shown: int, sort: str) -> ServerTable:
    """Servers with JetStream, the leader of them with a star, and their sums."""
    cells: list[tuple[object, ...]] = [
        (f"{row['name']}*" if row["leader"] else row["name"], *_jetstream_cells(row),
         ago_text(row["snapshot_time"]) if row["snapshot_time"] else "")
        for row in rows[:shown]
    ]  # fmt: skip
    fields = ("ha_assets", "memory", "storage", "api_total", "api_errors", "pending", "pending_requests")
    cells.append(("All servers", *_jetstream_cells(_sums(rows, fields)), ""))
    columns = (
        "Server", "HA Assets", "Memory", "File", "API Requests", "API Errors", "Pending", "Snapshot"
    )  # fmt: skip
    title = _title("servers with JetStream", rows, shown, sort)
    return ServerTable(title, columns, cells, ",".join(columns[1:-1]))


def _jetstream_cells(row: Page) -> tuple[str, ...]:
    pending = number_text(row["pending"])
    if row["pending_requests"]:
        pending += f" / {number_text(row['pending_requests'])} requests"
    return (
        number_text(row["ha_assets"]), size_text(row["memory"]), size_text(row["storage"]),
        number_text(row["api_total"]), number_text(row["api_errors"]), pending,
    )  # fmt: skip
