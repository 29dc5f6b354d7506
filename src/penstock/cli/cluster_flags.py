"""Cluster options from the flags of `penstock serve`."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

from msgspec import structs

from penstock.errors import ConfigError
from penstock.server.config.cluster_options import ClusterOptions

_FIELDS = {
    "no_advertise": "no_advertise",
    "cluster_advertise": "advertise",
    "connect_retries": "connect_retries",
}


def cluster_of(given: ClusterOptions | None, found: dict[str, Any]) -> ClusterOptions | None:
    """Overrides the block `cluster` by flags; None = no cluster.

    An empty `--cluster` turns off a configured cluster. Its URL replaces the configured authorization, also
    if it has none, as on the official server.

    Raises:
        ConfigError: an invalid URL, or routes without an address to listen on.
    """
    changes: dict[str, Any] = {name: found[flag] for flag, name in _FIELDS.items() if flag in found}
    listen = found.get("cluster_listen")
    if listen:
        changes |= _listener(listen)
    elif listen is not None:
        return None
    if found.get("routes"):
        changes["routes"] = tuple(
            dict.fromkeys(one.strip() for one in found["routes"].split(",") if one.strip())
        )
    if given is not None:
        return structs.replace(given, **changes)
    if not listen:
        if changes.get("routes"):
            raise ConfigError("solicited routes require cluster capabilities, e.g. --cluster")
        return None
    return ClusterOptions(**changes)


def _listener(url: str) -> dict[str, Any]:
    parts = urlsplit(url if "://" in url else f"nats://{url}")
    host, _, port = parts.netloc.rpartition("@")[2].rpartition(":")
    try:
        number = int(port)
    except ValueError as error:
        raise ConfigError(f'could not parse cluster url "{url}"; write it as "nats://host:port"') from error
    return {
        "host": host.strip("[]") or "0.0.0.0",
        "port": number,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
    }
