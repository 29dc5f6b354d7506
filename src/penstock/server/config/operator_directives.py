"""Directives of operator mode: `operator`, `resolver` and related ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError, MisuseError
from penstock.protocol.jwt import decode_account, decode_operator, parse_token
from penstock.protocol.nkeys import Prefix, is_public
from penstock.server.config.block_fields import fields
from penstock.server.config.conf_parser import ConfMap, ConfNode
from penstock.server.config.server_options import CalloutOptions, ResolverOptions
from penstock.server.config.values import Reader, block, boolean, duration_text, integer, shown, text

_MEMORY = re.compile(r"mem(ory)?\s*", re.IGNORECASE)


def operators(node: ConfNode, name: str) -> tuple[str, ...]:
    """Parses operator tokens: a file name or the token, one or an array."""
    entries = node.value if isinstance(node.value, list) else [node]
    return tuple(_operator(entry, name) for entry in entries)


def _operator(node: ConfNode, name: str) -> str:
    given = text(node, name)
    try:
        token = given if given.startswith("eyJ") else Path(given).read_text(encoding="utf-8")
        token = parse_token(token)
        decode_operator(token)
    except (MisuseError, OSError, UnicodeDecodeError) as error:
        raise node.where.error(f"error parsing operator JWT: {error}") from error
    return token


def trusted_keys(node: ConfNode, name: str) -> tuple[str, ...]:
    """Parses public keys of operators."""
    entries = node.value if isinstance(node.value, list) else [node]
    found = tuple(text(entry, name) for entry in entries)
    for entry, one in zip(entries, found, strict=True):
        if not is_public(one, Prefix.OPERATOR):
            raise entry.where.error(f'trust key "{one}" required to be a valid public operator nkey')
    return found


def resolver(node: ConfNode, name: str) -> ResolverOptions:
    """Parses `MEMORY`, or a map of `type` and its settings."""
    if isinstance(node.value, str):
        if _MEMORY.fullmatch(node.value):
            return ResolverOptions()
        if node.value.upper().startswith("URL"):
            raise node.where.error(
                "a resolver that asks a URL is not supported by this server yet: use MEMORY, or a map with"
                " type full and a dir"
            )
    if not isinstance(node.value, ConfMap):
        raise node.where.error(
            f"error parsing account resolver, should be MEM or a map containing dir and type"
            f" state=[FULL|CACHE]), not {shown(node)}"
        )
    found = fields(block(node, name), _RESOLVER, frozenset())
    found["type"] = {"mem": "memory"}.get(found.get("type", "").lower(), found.get("type", "").lower())
    try:
        return ResolverOptions(**found)
    except ConfigError as error:
        raise node.where.error(error.message) from error


_RESOLVER: dict[str, tuple[str, Reader]] = {
    "type": ("type", text),
    "dir": ("directory", text),
    "limit": ("limit", integer),
    "ttl": ("ttl_ns", duration_text),
    "interval": ("interval_ns", duration_text),
    "timeout": ("timeout_ns", duration_text),
    "allow_delete": ("allow_delete", boolean),
    "hard_delete": ("hard_delete", boolean),
}


def preload(node: ConfNode, name: str) -> tuple[tuple[str, str], ...]:
    """Parses a map of tokens by account."""
    if not isinstance(node.value, ConfMap):
        raise node.where.error("preload should be a map of account_public_key:account_jwt")
    found = []
    for account, _, entry in node.value:
        if not isinstance(entry.value, str):
            raise entry.where.error("preload map value should be a string JWT")
        try:
            decode_account(entry.value)
        except MisuseError as error:
            raise entry.where.error(f"invalid account JWT: {error}") from error
        found.append((account, entry.value))
    return tuple(found)


def pinned(node: ConfNode, name: str) -> frozenset[str]:
    """Parses account keys: one or an array."""
    entries = node.value if isinstance(node.value, list) else [node]
    return frozenset(text(entry, name) for entry in entries)


def callout(node: ConfNode, name: str) -> CalloutOptions:
    """Parses the block `auth_callout`."""
    found = fields(block(node, name), _CALLOUT, frozenset())
    if "issuer" not in found:
        raise node.where.error("Authorization callouts require an issuer to be specified")
    if not is_public(found["issuer"], Prefix.ACCOUNT):
        raise node.where.error(
            f'Expected callout user to be a valid public account nkey, got "{found["issuer"]}"'
        )
    try:
        return CalloutOptions(**{"auth_users": (), **found})
    except ConfigError as error:
        raise node.where.error(error.message) from error


def _texts(node: ConfNode, name: str) -> tuple[str, ...]:
    if not isinstance(node.value, list):
        raise node.where.error(f"Expected {name} field to be an array, got {shown(node)}")
    return tuple(text(entry, name) for entry in node.value)


def _xkey(node: ConfNode, name: str) -> str:
    key = text(node, name)
    if not is_public(key, Prefix.CURVE):
        raise node.where.error(f'Expected callout xkey to be a valid public xkey, got "{key}"')
    return key


_CALLOUT: dict[str, tuple[str, Reader]] = {
    "issuer": ("issuer", text),
    "account": ("account", text),
    "acc": ("account", text),
    "auth_users": ("auth_users", _texts),
    "users": ("auth_users", _texts),
    "allowed_accounts": ("allowed_accounts", _texts),
    "xkey": ("xkey", _xkey),
    "key": ("xkey", _xkey),
}


def completed(found: dict[str, Any]) -> dict[str, Any]:
    """Adds the system account from an operator's token if the file names none."""
    if found.get("operators") and "system_account" not in found:
        system = decode_operator(found["operators"][0]).nats.system_account
        if system:
            return {**found, "system_account": system}
    return found
