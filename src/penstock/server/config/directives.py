"""Semantics of nats.conf: converts the parser's tree to `ServerOptions`.

Each block has a table from directive to parse function and option. Directives that the official server has
and this one does not support are errors: a server that silently drops `tls` or `accounts` is worse than one
that does not start. Directives that only matter to replicated streams are validated and ignored
(`ignored_directives`).

A key to which a value refers as a variable is not an unknown field, in any block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import structs

from penstock.errors import ConfigError
from penstock.server.config.block_fields import check_without_effect, fields, unknown_field
from penstock.server.config.conf_parser import ConfMap, ConfNode, SourceLocation, parse_file
from penstock.server.config.config_errors import joined
from penstock.server.config.option_checks import syslog_address
from penstock.server.config.server_options import JetStreamOptions, ServerOptions
from penstock.server.config.values import (
    Reader,
    address,
    block,
    boolean,
    duration,
    duration_text,
    integer,
    interval,
    shown,
    storage_size,
    text,
    write_timeout,
)

NO_PROFILE = (
    "this server has no profiling port, because what asks one understands profiles of Go alone; "
    "`py-spy record --pid <pid>` takes a profile of a running server"
)

UNSUPPORTED = frozenset(
    """connect_error_reports feature_flags
    ocsp ocsp_cache prof_block_rate
    reconnect_error_reports resolver_tls""".split()
)
UNSUPPORTED_JETSTREAM = frozenset(
    """max_concurrent_io max_outstanding_catchup meta_compact meta_compact_size
    meta_compact_sync tpm""".split()
)


def _web(node: ConfNode, name: str) -> Any:
    from penstock.server.config import web_directives  # few servers have the web page

    return web_directives.web(node, name)


def _users(node: ConfNode, name: str) -> Any:
    from penstock.server.config import access_directives  # most configurations have no users

    return access_directives.users(node, name)


def _accounts(node: ConfNode, name: str) -> Any:
    from penstock.server.config import access_directives

    return access_directives.accounts(node, name)


def _permissions(node: ConfNode, name: str) -> Any:
    from penstock.server.config import access_directives

    return access_directives.permissions(node, name)


def _callout(node: ConfNode, name: str) -> Any:
    from penstock.server.config import operator_directives

    return operator_directives.callout(node, name)


def _authorization(node: ConfNode, name: str) -> dict[str, Any]:
    found = fields(block(node, name), _AUTHORIZATION, frozenset())
    defaults = found.pop("default_permissions", None)
    if defaults is not None and "users" in found:
        from penstock.server.config import access_directives

        found["users"] = access_directives.with_defaults(found["users"], defaults)
    return found


_AUTHORIZATION: dict[str, tuple[str, Reader]] = {
    "user": ("user", text),
    "username": ("user", text),
    "password": ("password", text),
    "pass": ("password", text),
    "token": ("token", text),
    "timeout": ("auth_timeout_ns", duration),
    "auth_callout": ("auth_callout", _callout),
    "proxy_required": ("proxy_required", boolean),
    "auth_hook": ("auth_callout", _callout),
    "users": ("users", _users),
    "default_permissions": ("default_permissions", _permissions),
    "default_permission": ("default_permissions", _permissions),
    "permissions": ("default_permissions", _permissions),
}


def _sync_interval(node: ConfNode, name: str) -> int | None:
    """Parses ns; None = `always`."""
    if isinstance(node.value, str) and node.value.lower() == "always":
        return None
    return interval(node, name)


def _cipher(node: ConfNode, name: str) -> str:
    word = text(node, name)
    known = {"chacha": "chacha", "chachapoly": "chacha", "aes": "aes"}
    if word.lower() not in known:
        raise node.where.error(f"unknown cipher type: {word!r}; it must be chacha, chachapoly or aes")
    return known[word.lower()]


def _unique_tag(node: ConfNode, name: str) -> str:
    return text(node, name).strip().lower()


def _fast_ingest_errors(node: ConfNode, name: str) -> bool:
    word = text(node, name)
    if word not in ("adr", "official"):
        raise node.where.error(f"unknown numbers of errors: {word!r}; they may be adr (default) or official")
    return word == "official"


def _jetstream_limits(node: ConfNode, name: str) -> dict[str, Any]:
    found = fields(block(node, name), _JETSTREAM_LIMITS, frozenset())
    batch: dict[str, Any] = found.pop("batch", {})
    return found | batch


def _batch_limits(node: ConfNode, name: str) -> dict[str, Any]:
    return fields(block(node, name), _BATCH_LIMITS, frozenset())


_JETSTREAM_LIMITS: dict[str, tuple[str, Reader]] = {
    "duplicate_window": ("duplicate_window_max_ns", duration_text),
    "max_ack_pending": ("ack_pending_max", integer),
    "max_ha_assets": ("ha_assets_max", integer),
    "max_request_batch": ("request_batch_max", integer),
    "default_max_consumers": ("consumers_per_stream_max", integer),
    "batch": ("batch", _batch_limits),
}
_BATCH_LIMITS: dict[str, tuple[str, Reader]] = {
    "max_inflight_per_stream": ("batch_inflight_per_stream_max", integer),
    "max_inflight_total": ("batch_inflight_total_max", integer),
    "max_msgs": ("batch_messages_max", integer),
    "max_bytes": ("batch_bytes_max", storage_size),
    "timeout": ("batch_timeout_ns", duration),
}

_JETSTREAM: dict[str, tuple[str, Reader]] = {
    "cipher": ("cipher", _cipher),
    "key": ("key", text),
    "ek": ("key", text),
    "encryption_key": ("key", text),
    "prev_key": ("prev_key", text),
    "prev_ek": ("prev_key", text),
    "prev_encryption_key": ("prev_key", text),
    "store_dir": ("store_dir", text),
    "storedir": ("store_dir", text),
    "domain": ("domain", text),
    "extension_hint": ("extension_hint", text),
    "max_memory_store": ("max_memory_bytes", storage_size),
    "max_mem_store": ("max_memory_bytes", storage_size),
    "max_mem": ("max_memory_bytes", storage_size),
    "max_memory": ("max_memory_bytes", storage_size),
    "max_file_store": ("max_file_bytes", storage_size),
    "max_file": ("max_file_bytes", storage_size),
    "sync_interval": ("sync_interval_ns", _sync_interval),
    "sync": ("sync_interval_ns", _sync_interval),
    "enabled": ("enabled", boolean),
    "enable": ("enabled", boolean),
    "strict": ("strict", boolean),
    "limits": ("limits", _jetstream_limits),
    "unique_tag": ("unique_tag", _unique_tag),
    "max_buffered_msgs": ("buffered_msgs_max", integer),
    "max_buffered_size": ("buffered_bytes_max", storage_size),
    "request_queue_limit": ("request_queue_limit", integer),
    "info_queue_limit": ("info_queue_limit", integer),
    "fast_ingest_errors": ("official_fast_errors", _fast_ingest_errors),
}


def _jetstream(node: ConfNode, name: str) -> JetStreamOptions | None:
    """Parses the block, `true`/`false`, or "enabled"/"disabled"."""
    value = node.value
    if isinstance(value, bool):
        return JetStreamOptions() if value else None
    if isinstance(value, str):
        if value.lower() not in ("enabled", "enable", "disabled", "disable"):
            raise node.where.error(f"Expected 'enabled' or 'disabled' for string value, got '{value}'")
        return JetStreamOptions() if value.lower().startswith("enable") else None
    found = fields(block(node, name), _JETSTREAM, UNSUPPORTED_JETSTREAM)
    enabled = found.pop("enabled", True)
    found.update(found.pop("limits", {}))
    found.pop("strict", None)  # requests are always checked strictly, which is the official default
    if "sync_interval_ns" in found and found["sync_interval_ns"] is None:
        del found["sync_interval_ns"]
        found["sync_always"] = True
    elif "sync_interval_ns" in found:
        found["sync_replicas"] = False
    if "cipher" in found and not found.get("key"):
        raise node.where.error(
            "jetstream: cipher is set without key, and nothing would be encrypted; set key too"
        )
    return JetStreamOptions(**found) if enabled else None


def _tls(node: ConfNode, name: str) -> Any:
    from penstock.server.config.tls_directives import tls

    return tls(node, name)


def _trust(reader: str) -> Reader:
    """A parse function of operator_directives, imported on use."""

    def read(node: ConfNode, name: str) -> Any:
        from penstock.server.config import operator_directives

        return getattr(operator_directives, reader)(node, name)

    return read


def _websocket(node: ConfNode, name: str) -> Any:
    from penstock.server.config.websocket_directives import websocket

    return websocket(node, name)


def _proxies(node: ConfNode, name: str) -> tuple[str, ...]:
    from penstock.server.config.proxy_directives import trusted  # few servers are behind proxies

    return trusted(node, name)


def _tags(node: ConfNode, name: str) -> tuple[str, ...]:
    """Parses one tag or an array of tags. As in the official server: lower case, trimmed, without repeats."""
    entries = node.value if isinstance(node.value, list) else [node]
    found: dict[str, None] = {}
    for entry in entries:
        if not isinstance(entry.value, str):
            raise entry.where.error(f"error parsing tags: {shown(entry)}; a tag must be a string")
        found[entry.value.strip().lower()] = None
    found.pop("", None)
    return tuple(found)


def _metadata(node: ConfNode, name: str) -> tuple[tuple[str, str], ...]:
    if not isinstance(node.value, ConfMap):
        raise node.where.error(f"error parsing metadata: {name} is {shown(node)}; it must be a map {{...}}")
    return tuple({key: text(entry, f"{name}.{key}") for key, _, entry in node.value}.items())


def _syslog_address(node: ConfNode, name: str) -> str:
    syslog_address(text(node, name))
    return text(node, name)


def _sub_tokens(node: ConfNode, name: str) -> int:
    count = integer(node, name)
    if not 1 <= count <= 255:
        raise node.where.error(f"{name} is {count}; it must be from 1 to 255")
    return count


def _inverted(node: ConfNode, name: str) -> bool:
    return not boolean(node, name)


def _default_domains(node: ConfNode, name: str) -> Any:
    from penstock.server.config.leaf_directives import default_domains

    return default_domains(node, name)


_TOP: dict[str, tuple[str, Reader]] = {
    "port": ("port", integer),
    "host": ("host", text),
    "net": ("host", text),
    "server_name": ("server_name", text),
    "server_tags": ("server_tags", _tags),
    "server_metadata": ("server_metadata", _metadata),
    "client_advertise": ("client_advertise", text),
    "http_port": ("http_port", integer),
    "monitor_port": ("http_port", integer),
    "http_base_path": ("http_base_path", text),
    "https_port": ("https_port", integer),
    "web": ("web", _web),
    "max_payload": ("max_payload", integer),
    "no_header_support": ("header_support", _inverted),
    **dict.fromkeys(("no_system_account", "no_system", "no_sys_acc"), ("no_system_account", boolean)),
    "disable_sublist_cache": ("disable_sublist_cache", boolean),
    "no_sublist_cache": ("disable_sublist_cache", boolean),
    "max_connections": ("max_connections", integer),
    "max_conn": ("max_connections", integer),
    "max_control_line": ("max_control_line", integer),
    "max_pending": ("max_pending", integer),
    "proxy_protocol": ("proxy_protocol", boolean),
    "proxies": ("trusted_proxies", _proxies),
    "max_subscriptions": ("max_subscriptions", integer),
    "max_subs": ("max_subscriptions", integer),
    "max_sub_tokens": ("max_sub_tokens", _sub_tokens),
    "max_subscription_tokens": ("max_sub_tokens", _sub_tokens),
    "max_closed_clients": ("max_closed_clients", integer),
    "ping_interval": ("ping_interval_ns", interval),
    "ping_max": ("ping_max", integer),
    "write_timeout": ("write_timeout", write_timeout),
    "write_deadline": ("write_deadline_ns", interval),
    "no_fast_producer_stall": ("fast_producer_stall", _inverted),
    "no_auth_user": ("no_auth_user", text),
    "accounts": ("accounts", _accounts),
    "system_account": ("system_account", text),
    "system": ("system_account", text),
    **dict.fromkeys(
        ("operator", "operators", "root", "roots", "root_operators", "root_operator"),
        ("operators", _trust("operators")),
    ),
    **dict.fromkeys(("trusted", "trusted_keys"), ("trusted_keys", _trust("trusted_keys"))),
    **dict.fromkeys(("resolver", "account_resolver", "accounts_resolver"), ("resolver", _trust("resolver"))),
    "resolver_preload": ("resolver_preload", _trust("preload")),
    "default_sentinel": ("default_sentinel", text),
    "resolver_pinned_accounts": ("resolver_pinned_accounts", _trust("pinned")),
    "tls": ("tls", _tls),
    "websocket": ("websocket", _websocket),
    "ws": ("websocket", _websocket),
    "allow_non_tls": ("allow_non_tls", boolean),
    "debug": ("debug", boolean),
    "trace": ("trace", boolean),
    "logtime": ("logtime", boolean),
    "logtime_utc": ("logtime_utc", boolean),
    "log_format": ("log_format", text),
    "log_file": ("log_file", text),
    "logfile": ("log_file", text),
    "logfile_size_limit": ("log_size_limit", integer),
    "log_size_limit": ("log_size_limit", integer),
    "logfile_max_num": ("logfile_max_num", integer),
    "log_max_num": ("logfile_max_num", integer),
    "syslog": ("syslog", boolean),
    "remote_syslog": ("remote_syslog", _syslog_address),
    "max_traced_msg_len": ("max_traced_msg_len", integer),
    "pid_file": ("pid_file", text),
    "pidfile": ("pid_file", text),
    "ports_file_dir": ("ports_file_dir", text),
    "lame_duck_duration": ("lame_duck_duration_ns", duration_text),
    "lame_duck_grace_period": ("lame_duck_grace_period_ns", duration_text),
    "jetstream": ("jetstream", _jetstream),
    "default_js_domain": ("default_js_domains", _default_domains),
}
_STORE_DIR = frozenset({"store_dir", "storedir"})
_MAPPINGS = frozenset({"mappings", "maps"})
_ADDRESSES = {
    "listen": ("host", "port"),
    "http": ("http_host", "http_port"),
    "https": ("http_host", "https_port"),
}
_TRACES = frozenset({"trace_verbose", "trace_headers"})


def _cluster(node: ConfNode, name: str) -> dict[str, Any]:
    from penstock.server.config.cluster_directives import cluster  # few servers are members of one

    return cluster(node, name)


def _leafnodes(node: ConfNode, name: str) -> dict[str, Any]:
    from penstock.server.config.leaf_directives import leafnodes  # few servers have leaf nodes

    return leafnodes(node, name)


def _gateway(node: ConfNode, name: str) -> dict[str, Any]:
    from penstock.server.config.gateway_directives import gateway  # few servers have gateways

    return gateway(node, name)


_BLOCKS: dict[str, Reader] = {  # set several options
    "authorization": _authorization,
    "cluster": _cluster,
    "leafnodes": _leafnodes,
    "leaf": _leafnodes,
    "gateway": _gateway,
}
_REMOTE_BLOCKS = frozenset({"mqtt"})


def options_of(tree: ConfMap, base: ServerOptions | None = None) -> ServerOptions:
    """Converts a configuration tree to options.

    Args:
        tree: result of `conf_parser.parse`.
        base: options for absent directives; default `ServerOptions()`.

    Raises:
        ConfigError: unknown or unsupported directives, or invalid values; ConfigErrors for several.
    """
    found: dict[str, Any] = {}
    errors: list[ConfigError] = []
    steps: list[_Step] = []
    for key, where, node in tree:
        try:
            _read(key, where, node, found)
        except ConfigError as error:
            errors.append(error)
        steps.append((where, dict(found)))
    if errors:
        raise joined(errors)
    base = base or ServerOptions()
    store_dir: tuple[str, SourceLocation] | None = found.pop("store_dir", None)
    if store_dir is not None:
        for _, before in steps:
            before.pop("store_dir", None)
        found = _with_store_dir(found, base, *store_dir)
        steps.append((store_dir[1], found))
    if "operators" in found:
        from penstock.server.config.operator_directives import completed

        found = completed(found)
        steps[-1] = (steps[-1][0], found)
    try:
        return structs.replace(base, **found)
    except ConfigError as error:
        raise joined([_blamed(error, base, steps), *_others(error, base, steps)]) from error


_Step = tuple[SourceLocation, dict[str, Any]]
"""The location of a directive, and the options after it."""


def _read(key: str, where: SourceLocation, node: ConfNode, found: dict[str, Any]) -> None:
    """Reads one directive into `found`. Raises ConfigError."""
    name = key.lower()
    if name in _ADDRESSES:
        host, port = address(node, name)
        option_host, option_port = _ADDRESSES[name]
        found[option_port] = port
        if host is not None:
            found[option_host] = host
    elif name in _BLOCKS:
        found.update(_BLOCKS[name](node, name))
    elif name in _TRACES:
        found[name] = boolean(node, name)
        if found[name]:
            found["trace"] = True
    elif name in _REMOTE_BLOCKS:
        from penstock.server.config import remote_directives  # most configurations have none of them

        remote_directives.check(node, name)
    elif name == "prof_port":
        _check_no_profile(node, name)
    elif name in _STORE_DIR:
        found["store_dir"] = (text(node, name), where)
    elif name in _MAPPINGS:
        from penstock.server.config.mapping_directives import mappings  # most configurations have none

        found["mappings"] = (*found.get("mappings", ()), *mappings(node, name))
    elif name in _TOP:
        option, read = _TOP[name]
        found[option] = _placed(read, node, name, where)
    elif not node.used and name in UNSUPPORTED:
        check_without_effect(key, where, node, UNSUPPORTED)
    elif not node.used:
        known = [*_TOP, *_ADDRESSES, *_BLOCKS, *_TRACES, *_STORE_DIR, *_MAPPINGS]
        raise unknown_field(key, where, known, {"authorization": _AUTHORIZATION, "jetstream": _JETSTREAM})


def _check_no_profile(node: ConfNode, name: str) -> None:
    if integer(node, name):
        raise node.where.error(f"{name} is {node.value}; {NO_PROFILE}")


def _with_store_dir(
    found: dict[str, Any], base: ServerOptions, path: str, where: SourceLocation
) -> dict[str, Any]:
    """Passes a top-level store_dir to JetStream, which alone uses it; ignored without JetStream."""
    jetstream = found.get("jetstream", base.jetstream)
    if jetstream is None:
        return found
    if "jetstream" in found and jetstream.store_dir is not None:
        raise where.error("Duplicate 'store_dir' configuration: it is set here and in the block jetstream")
    return found | {"jetstream": structs.replace(jetstream, store_dir=path)}


def _blamed(error: ConfigError, base: ServerOptions, steps: list[_Step]) -> ConfigError:
    """Adds the location of the directive that caused an error of the options as a whole."""
    for where, found in steps:
        earlier = _refusal(base, found)
        if earlier is not None and earlier.message == error.message:
            return where.error(error.message)
    return error


def _others(error: ConfigError, base: ServerOptions, steps: list[_Step]) -> list[ConfigError]:
    """Errors beside the one that the options as a whole raise first: of directives whose own options are
    refused, also together with all others that are not."""
    wrong: list[tuple[SourceLocation, str, dict[str, Any]]] = []
    before: dict[str, Any] = {}
    for where, found in steps:
        own = {name: value for name, value in found.items() if before.get(name, base) is not value}
        refusal = _refusal(base, own)
        if refusal is not None:
            wrong.append((where, refusal.message, own))
        before = found
    right = {name: value for name, value in before.items() if not any(name in own for *_, own in wrong)}
    errors: list[ConfigError] = []
    for where, message, own in wrong:
        refusal = _refusal(base, right | own)
        if refusal is not None and refusal.message == message != error.message:
            errors.append(where.error(message))
    return errors


def _refusal(base: ServerOptions, found: dict[str, Any]) -> ConfigError | None:
    """Why these options are refused; None when they are valid."""
    try:
        structs.replace(base, **found)
    except ConfigError as error:
        return error
    return None


def _placed(read: Reader, node: ConfNode, name: str, where: SourceLocation) -> Any:
    """Parses a value; errors without a location get the directive's."""
    try:
        return read(node, name)
    except ConfigError as error:
        if error.file is not None:
            raise
        raise where.error(error.message) from error


def load(path: str, base: ServerOptions | None = None) -> ServerOptions:
    """Reads options from a configuration file. Raises ConfigError, or OSError when the file is unreadable."""
    return structs.replace(options_of(parse_file(path), base), config_file=path)


def warnings(path: str) -> list[str]:
    """Errors of a configuration test (`-t`) with which a server nevertheless starts. Raises like `load`."""
    tree = parse_file(path)
    options_of(tree)
    if not tree.items:
        return [f"{path}: config has no values or is empty"]
    return [f"{node.where}: {node.warning}" for node in _nodes(tree) if node.warning]


def _nodes(tree: ConfMap) -> Iterator[ConfNode]:
    """Yields all values at any depth."""
    found = list(tree.items.values())
    while found:
        node = found.pop()
        yield node
        if isinstance(node.value, ConfMap):
            found += node.value.items.values()
        elif isinstance(node.value, list):
            found += node.value
