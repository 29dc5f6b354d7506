"""The block `leafnodes` of nats.conf, and `default_js_domain`."""

from __future__ import annotations

from typing import Any

from penstock.errors import ConfigError, MisuseError
from penstock.routing.permissions import PermissionEntry
from penstock.server.config import tls_directives
from penstock.server.config.block_fields import each, fields
from penstock.server.config.conf_parser import ConfMap, ConfNode
from penstock.server.config.leaf_options import LeafOptions, LeafProxyOptions, LeafRemoteOptions, LeafUser
from penstock.server.config.link_directives import CREDENTIALS, compression_of, link_fields
from penstock.server.config.values import (
    Reader,
    block,
    boolean,
    duration,
    interval,
    shown,
    text,
)

NO_MIGRATION = "leaders of streams do not move when a hub is lost; leave it out"


def leafnodes(node: ConfNode, name: str) -> dict[str, Any]:
    """Reads the block.

    Returns:
        The option it sets. A block without port and remotes opens nothing, and sets nothing, as on the
        official server.

    Raises:
        ConfigError: unknown field or invalid value.
    """
    found = link_fields(node, name, _LEAFNODES)
    if not found.get("port") and not found.get("remotes"):
        return {}
    try:
        return {"leafnodes": LeafOptions(**found)}
    except ConfigError as error:
        raise node.where.error(error.message) from error


def default_domains(node: ConfNode, name: str) -> tuple[tuple[str, str], ...]:
    """Reads `default_js_domain`: a map of account to domain."""
    return tuple((key, text(value, key)) for key, _, value in block(node, name))


def _authorization(node: ConfNode, name: str) -> dict[str, Any]:
    found = fields(block(node, name), _AUTHORIZATION, frozenset())
    users = found.pop("users", ())
    account = found.pop("account", "")
    user, password, nkey = (found.pop(key, "") for key in ("user", "password", "nkey"))
    if users and user:
        raise node.where.error("can not have a single user/pass and a users array")
    if users and nkey:
        raise node.where.error("can not have a single nkey and a users array")
    if user or nkey:
        own = {"account": account} if account else {}
        proxy = found.get("proxy_required", False)
        one = LeafUser(name=user or nkey, password=password, nkey=not user, proxy_required=proxy, **own)
        return found | {"users": (one,), "is_single": True}
    return found | {"users": users, "account": account}


def _nkey(node: ConfNode, name: str) -> str:
    from penstock.protocol.nkeys import Prefix, decode_public

    key = text(node, name)
    try:
        valid = decode_public(key)[0] is Prefix.USER
    except MisuseError:
        valid = False
    if not valid:
        raise node.where.error("Not a valid public nkey for leafnode authorization")
    return key


def _users(node: ConfNode, name: str) -> tuple[LeafUser, ...]:
    if not isinstance(node.value, list):
        raise node.where.error(f"{name} is {shown(node)}; it must be an array of maps")
    return each(node.value, _user)


def _user(entry: ConfNode) -> LeafUser:
    found = fields(block(entry, "user"), _USER, frozenset())
    if not found.get("name"):
        raise entry.where.error("a user of leafnode authorization has no `user`")
    return LeafUser(**found)


def _remotes(node: ConfNode, name: str) -> tuple[LeafRemoteOptions, ...]:
    if not isinstance(node.value, list):
        raise node.where.error(f"Expected remotes field to be an array, got {shown(node)}")
    return each(node.value, lambda entry: _remote(entry, name))


def _remote(node: ConfNode, name: str) -> LeafRemoteOptions:
    found = fields(block(node, name), _REMOTE, frozenset())
    for unused in ("migrate", "without_effect"):
        found.pop(unused, None)
    if "compression" in found:
        found.update(found.pop("compression"))
    try:
        return LeafRemoteOptions(**found)
    except ConfigError as error:
        raise node.where.error(error.message) from error


def _urls(node: ConfNode, name: str) -> tuple[str, ...]:
    from penstock.cluster.leaf_ports import leaf_address_of

    urls = []
    for entry in node.value if isinstance(node.value, list) else [node]:
        url = text(entry, name)
        try:
            leaf_address_of(url)
        except ConfigError as error:
            raise entry.where.error(error.message) from error
        urls.append(url)
    return tuple(dict.fromkeys(urls))


def _seed(node: ConfNode, name: str) -> str:
    from penstock.protocol.nkeys import Prefix, decode_seed

    seed = text(node, name)
    try:
        valid = decode_seed(seed)[0] is Prefix.USER
    except MisuseError:
        valid = False
    if not valid:
        raise node.where.error("Remote leafnode nkey is not a valid seed")
    return seed


def _subjects(node: ConfNode, name: str) -> tuple[str, ...]:
    entries = node.value if isinstance(node.value, list) else [node]
    found = []
    for entry in entries:
        subject = text(entry, name)
        try:
            PermissionEntry.parse(subject, queues=False)
        except ConfigError as error:
            raise entry.where.error(error.message) from error
        found.append(subject)
    return tuple(found)


def _migrate(node: ConfNode, name: str) -> None:
    if isinstance(node.value, ConfMap) or boolean(node, name):
        raise node.where.error(f"{name}: {NO_MIGRATION}")


def _proxy(node: ConfNode, name: str) -> LeafProxyOptions | None:
    found = fields(block(node, name), _PROXY, frozenset())
    if not found:
        return None
    if "url" not in found:
        raise node.where.error("proxy URL must be specified when other proxy options are set")
    try:
        return LeafProxyOptions(**found)
    except ConfigError as error:
        raise node.where.error(error.message) from error


def _no_proxy_tls(node: ConfNode, name: str) -> None:
    raise node.where.error(f"{name}: this server speaks plain HTTP to proxies; leave it out")


_AUTHORIZATION: dict[str, tuple[str, Reader]] = {
    **CREDENTIALS,
    "nkey": ("nkey", _nkey),
    "users": ("users", _users),
    "account": ("account", text),
    "proxy_required": ("proxy_required", boolean),
}
_USER: dict[str, tuple[str, Reader]] = {
    **dict.fromkeys(("user", "username"), ("name", text)),
    **dict.fromkeys(("pass", "password"), ("password", text)),
    "account": ("account", text),
    "proxy_required": ("proxy_required", boolean),
}
_PROXY: dict[str, tuple[str, Reader]] = {
    "url": ("url", text),
    "username": ("username", text),
    "password": ("password", text),
    "timeout": ("timeout_ns", duration),
    "tls": ("tls", _no_proxy_tls),
}
_REMOTE: dict[str, tuple[str, Reader]] = {
    **dict.fromkeys(("no_randomize", "dont_randomize"), ("no_randomize", boolean)),
    **dict.fromkeys(("url", "urls"), ("urls", _urls)),
    **dict.fromkeys(("account", "local"), ("account", text)),
    **dict.fromkeys(("creds", "credentials"), ("credentials", text)),
    **dict.fromkeys(("nkey", "seed"), ("nkey", _seed)),
    "tls": ("tls", tls_directives.remote_tls),
    "hub": ("hub", boolean),
    **dict.fromkeys(("deny_imports", "deny_import"), ("deny_imports", _subjects)),
    **dict.fromkeys(("deny_exports", "deny_export"), ("deny_exports", _subjects)),
    **dict.fromkeys(
        ("ws_compress", "ws_compression", "websocket_compress", "websocket_compression"),
        ("ws_compression", boolean),
    ),
    **dict.fromkeys(("ws_no_masking", "websocket_no_masking"), ("without_effect", boolean)),
    **dict.fromkeys(("jetstream_cluster_migrate", "js_cluster_migrate"), ("migrate", _migrate)),
    **dict.fromkeys(("isolate_leafnode_interest", "isolate"), ("isolate", boolean)),
    "request_isolation": ("request_isolation", boolean),
    "compression": ("compression", compression_of),
    "first_info_timeout": ("first_info_timeout_ns", duration),
    "dial_timeout": ("dial_timeout_ns", duration),
    "disabled": ("disabled", boolean),
    "proxy": ("proxy", _proxy),
    "ignore_discovered_servers": ("ignore_discovered_servers", boolean),
}
_LEAFNODES: dict[str, tuple[str, Reader]] = {
    "authorization": ("authorization", _authorization),
    "remotes": ("remotes", _remotes),
    **dict.fromkeys(("reconnect", "reconnect_delay", "reconnect_interval"), ("reconnect_ns", interval)),
    "dial_timeout": ("dial_timeout_ns", interval),
    "leafnode_advertise": ("advertise", text),
    **dict.fromkeys(("min_version", "minimum_version"), ("min_version", text)),
    **dict.fromkeys(("isolate_leafnode_interest", "isolate"), ("isolate", boolean)),
}
