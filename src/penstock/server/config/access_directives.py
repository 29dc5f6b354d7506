"""The blocks `users`, `permissions` and `accounts` of nats.conf.

Imported only if a configuration has one of them. Invalid values raise ConfigError with their location.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from msgspec import structs

from penstock.errors import ConfigError
from penstock.protocol.numbers import natural
from penstock.routing.permissions import PermissionEntry, Permissions, ResponsePermission, SubjectPermission
from penstock.server.config.block_fields import each, fields
from penstock.server.config.conf_parser import ConfMap, ConfNode
from penstock.server.config.config_errors import joined
from penstock.server.config.mapping_directives import mappings
from penstock.server.config.server_options import AccountJetStream, AccountOptions, MessageTrace, User
from penstock.server.config.values import block, boolean, duration_text, integer, shown, text

if TYPE_CHECKING:
    from penstock.server.config.import_export_directives import ImportExportEntry

_ALLOW = frozenset({"allow", "import", "export", "permit"})
_PUBLISH = frozenset({"publish", "pub", "import"})
_SUBSCRIBE = frozenset({"subscribe", "sub", "export"})
_RESPONSES = frozenset({"allow_responses", "allow_response", "publish_allow_responses"})
_EXPIRES = frozenset({"expires", "expiration", "ttl"})
_MAX = frozenset({"max", "max_msgs", "max_messages", "max_responses"})


def permissions(node: ConfNode, name: str) -> Permissions:
    """Parses a block of `publish`, `subscribe` and `allow_responses`."""
    found: dict[str, Any] = {}
    for key, where, entry in block(node, name):
        field = key.lower()
        if field in _PUBLISH:
            found["publish"] = _subjects(entry, field, queues=False)
        elif field in _SUBSCRIBE:
            found["subscribe"] = _subjects(entry, field, queues=True)
        elif field in _RESPONSES:
            found["responses"] = _responses(entry, field)
        elif not entry.used:
            raise where.error(f'Unknown field "{key}" parsing permissions')
    return Permissions(**found)


def _subjects(node: ConfNode, name: str, *, queues: bool) -> SubjectPermission:
    """Parses one filter, an array of filters, or a map of `allow` and `deny`."""
    if not isinstance(node.value, ConfMap):
        return SubjectPermission(allow=_entries(node, name, queues=queues) or None)
    allow: tuple[PermissionEntry, ...] = ()
    deny: tuple[PermissionEntry, ...] = ()
    for key, where, entry in node.value:
        if key.lower() in _ALLOW:
            allow += _entries(entry, key, queues=queues)
        elif key.lower() == "deny":
            deny += _entries(entry, key, queues=queues)
        elif not entry.used:
            raise where.error(f'Unknown field name "{key}" parsing subject permissions, only \'allow\' or'
                              " 'deny' are permitted")  # fmt: skip
    return SubjectPermission(allow=allow or None, deny=deny)


def _entries(node: ConfNode, name: str, *, queues: bool) -> tuple[PermissionEntry, ...]:
    entries = node.value if isinstance(node.value, list) else [node]
    found = []
    for entry in entries:
        try:
            found.append(PermissionEntry.parse(text(entry, name), queues=queues))
        except ConfigError as error:
            if error.file is not None:
                raise
            raise entry.where.error(error.message) from error
    return tuple(found)


def _responses(node: ConfNode, name: str) -> ResponsePermission | None:
    """Parses true, false, or a map of `max` and `expires`, in which 0 means the default."""
    if isinstance(node.value, bool):
        return ResponsePermission() if node.value else None
    if not isinstance(node.value, ConfMap):
        raise node.where.error(f"error parsing response permissions: {name} is {shown(node)}")
    found = ResponsePermission()
    for key, where, entry in node.value:
        if key.lower() in _MAX:
            found = replace(found, max_msgs=integer(entry, key) or found.max_msgs)
        elif key.lower() in _EXPIRES:
            found = replace(found, expires_ns=duration_text(entry, key) or found.expires_ns)
        elif not entry.used:
            raise where.error(f'Unknown field "{key}" parsing permissions')
    return found


_CONNECTION_TYPES = ("STANDARD", "WEBSOCKET", "LEAFNODE", "LEAFNODE_WS", "MQTT", "MQTT_WS", "IN_PROCESS")


def _connection_types(node: ConfNode, name: str) -> frozenset[str]:
    """Parses one official connection type, or an array of them."""
    entries = node.value if isinstance(node.value, list) else [node]
    found = {text(entry, name).upper(): entry for entry in entries}
    for kind, entry in found.items():
        if kind not in _CONNECTION_TYPES:
            known = ", ".join(_CONNECTION_TYPES)
            raise entry.where.error(f'invalid connection types ["{kind}"]; known are {known}')
    return frozenset(found)


_USER = {
    "nkey": ("nkey", text),
    "allowed_connection_types": ("connection_types", _connection_types),
    "connection_types": ("connection_types", _connection_types),
    "user": ("name", text),
    "username": ("name", text),
    "password": ("password", text),
    "pass": ("password", text),
    "proxy_required": ("proxy_required", boolean),
    "permissions": ("permissions", permissions),
    "permission": ("permissions", permissions),
    "authorization": ("permissions", permissions),
}


def users(node: ConfNode, name: str) -> tuple[User, ...]:
    """Parses an array of users."""
    if not isinstance(node.value, list):
        raise node.where.error(f"{name} is {shown(node)}; it must be an array of maps")
    return each(node.value, lambda entry: _user(entry, name))


def _user(node: ConfNode, name: str) -> User:
    found = fields(block(node, name), _USER, frozenset())
    if "nkey" in found:
        return _nkey_user(node, found)
    if not found.get("name"):
        raise node.where.error("a user has no name: give it `user: ...`")
    return User(**{"password": "", **found})


def _nkey_user(node: ConfNode, found: dict[str, Any]) -> User:
    from penstock.protocol.nkeys import Prefix, is_public

    nkey = found.pop("nkey")
    if "name" in found or "password" in found:
        raise node.where.error("Nkey users do not take usernames or passwords")
    if not is_public(nkey, Prefix.USER):
        raise node.where.error(f'Not a valid public nkey for a user: "{nkey}"')
    return User(**{**found, "name": nkey, "password": "", "nkey": True})


def with_defaults(users: tuple[User, ...], defaults: Permissions | None) -> tuple[User, ...]:
    """Gives the default permissions to users without permissions of their own."""
    if defaults is None:
        return users
    return tuple(user if user.permissions else structs.replace(user, permissions=defaults) for user in users)


def _size(node: ConfNode, name: str) -> int:
    """Parses a size in bytes: an integer, because the official server accepts no text in account blocks."""
    if isinstance(node.value, bool) or not isinstance(node.value, int):
        raise node.where.error(f'Expected a parseable size for "{name}", got {shown(node)}')
    return node.value


_JETSTREAM = {
    **dict.fromkeys(("max_memory", "max_mem", "mem", "memory"), ("max_memory_bytes", _size)),
    **dict.fromkeys(("max_store", "max_file", "max_disk", "store", "disk"), ("max_file_bytes", _size)),
    **dict.fromkeys(("max_streams", "streams"), ("max_streams", integer)),
    **dict.fromkeys(("max_consumers", "consumers"), ("max_consumers", integer)),
    "max_ack_pending": ("max_ack_pending", integer),
    **dict.fromkeys(("max_bytes_required", "max_stream_bytes", "max_bytes"), ("max_bytes_required", boolean)),
    **dict.fromkeys(("mem_max_stream_bytes", "memory_max_stream_bytes"), ("memory_max_stream_bytes", _size)),
    **dict.fromkeys(("disk_max_stream_bytes", "store_max_stream_bytes"), ("file_max_stream_bytes", _size)),
}
_UNSUPPORTED_JETSTREAM = frozenset({"cluster_traffic"})


def _jetstream(node: ConfNode, name: str) -> AccountJetStream | None:
    """Parses true, false, "enabled", "disabled", or a map of limits."""
    value = node.value
    if isinstance(value, str) and value.lower() in ("enabled", "enable", "disabled", "disable"):
        value = value.lower().startswith("enable")
    if isinstance(value, bool):
        return AccountJetStream() if value else None
    if not isinstance(value, ConfMap):
        raise node.where.error(f"Expected map, bool or string to define JetStream, got {shown(node)}")
    return AccountJetStream(**fields(value, _JETSTREAM, _UNSUPPORTED_JETSTREAM))


_LIMITS = {
    **dict.fromkeys(("max_connections", "max_conn"), ("max_connections", integer)),
    **dict.fromkeys(("max_subscriptions", "max_subs"), ("max_subscriptions", integer)),
    **dict.fromkeys(("max_payload", "max_pay"), ("max_payload", integer)),
    **dict.fromkeys(("max_leafnodes", "max_leafs"), ("max_leafnodes", integer)),
}


def _limits(node: ConfNode, name: str) -> dict[str, Any]:
    return fields(block(node, name), _LIMITS, frozenset())


def _exports(node: ConfNode, name: str) -> list[ImportExportEntry]:
    from penstock.server.config import import_export_directives  # most configurations share nothing

    return import_export_directives.exports(node, name)


def _imports(node: ConfNode, name: str) -> list[ImportExportEntry]:
    from penstock.server.config import import_export_directives

    return import_export_directives.imports(node, name)


def _trace(node: ConfNode, name: str) -> MessageTrace:
    """Parses a destination, or a map of `dest` and `sampling`."""
    found = {"dest": text(node, name)} if isinstance(node.value, str) else fields(
        block(node, name), {"dest": ("dest", text), "sampling": ("sampling", _percent)}, frozenset()
    )  # fmt: skip
    if "dest" not in found:
        raise node.where.error(f"{name} has no dest")
    try:
        return MessageTrace(**found)
    except ConfigError as error:
        raise node.where.error(error.message) from error


def _percent(node: ConfNode, name: str) -> int:
    """Parses a percentage, with or without `%`."""
    percent = natural(node.value.removesuffix("%")) if isinstance(node.value, str) else None
    if percent is not None:
        return percent
    return integer(node, name)


_ACCOUNT = {
    "users": ("users", users),
    "jetstream": ("jetstream", _jetstream),
    "mappings": ("mappings", mappings),
    "maps": ("mappings", mappings),
    **dict.fromkeys(("default_permissions", "default_permission", "permissions"), ("defaults", permissions)),
    "limits": ("limits", _limits),
    **dict.fromkeys(("msg_trace", "trace_dest"), ("trace", _trace)),
    "exports": ("exports", _exports),
    "imports": ("imports", _imports),
}
_UNSUPPORTED_ACCOUNT = frozenset("nkey cluster_traffic default_js_domain".split())


def accounts(node: ConfNode, name: str) -> tuple[AccountOptions, ...]:
    """Parses a map of accounts by name, or an array of names."""
    if isinstance(node.value, list):
        return tuple(AccountOptions(name=text(entry, name)) for entry in node.value)
    found: list[AccountOptions] = []
    shared: list[ImportExportEntry] = []
    errors: list[ConfigError] = []
    for account, where, entry in block(node, name):
        if not isinstance(entry.value, ConfMap):
            if entry.used:
                continue
            errors.append(where.error("Expected map entries for accounts"))
            continue
        try:
            found.append(_account(account, entry.value, shared))
        except ConfigError as error:
            errors.append(error if error.file is not None else where.error(error.message))
    if errors:
        raise joined(errors)
    if shared:
        from penstock.server.config import import_export_directives

        import_export_directives.placed({account.name: account for account in found}, shared)
    return tuple(found)


def _account(name: str, items: ConfMap, shared: list[ImportExportEntry]) -> AccountOptions:
    """Parses one account. Appends its exports and imports, with their locations, to `shared`."""
    found = fields(items, _ACCOUNT, _UNSUPPORTED_ACCOUNT)
    for field in ("exports", "imports"):
        entries: list[ImportExportEntry] = found.get(field, [])
        shared.extend(entries)
        found[field] = tuple(entry.value for entry in entries)
    its_users = with_defaults(found.pop("users", ()), found.pop("defaults", None))
    limits = found.pop("limits", {})
    placed = tuple(structs.replace(user, account=name) for user in its_users)
    return AccountOptions(name=name, users=placed, **found, **limits)
