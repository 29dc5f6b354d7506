"""The block `proxies` of nats.conf: the keys of trusted proxies."""

from __future__ import annotations

from penstock.errors import ConfigError
from penstock.protocol.nkeys import is_public
from penstock.server.config.block_fields import unknown_field
from penstock.server.config.conf_parser import ConfNode
from penstock.server.config.values import block, shown, text


def trusted(node: ConfNode, name: str) -> tuple[str, ...]:
    """Parses the block `proxies`: the trusted keys."""
    found: tuple[str, ...] = ()
    for key, where, entry in block(node, name):
        if key.lower() != "trusted":
            if entry.used:
                continue
            raise unknown_field(key, where, ["trusted"])
        if not isinstance(entry.value, list):
            raise where.error(f"expected proxies' trusted field to be an array, got {shown(entry)}")
        found = tuple(_key(each) for each in entry.value)
    return found


def _key(node: ConfNode) -> str:
    public = ""
    for key, where, entry in block(node, "an entry of proxies.trusted"):
        if key.lower() not in ("key", "public_key"):
            if entry.used:
                continue
            raise unknown_field(key, where, ["key", "public_key"])
        public = text(entry, key)
        if not is_public(public):
            raise where.error(f'invalid proxy key "{public}"')
    if not public:
        raise node.where.error('proxy trusted key "" is invalid: give the entry a `key`')
    return public


def check(keys: tuple[str, ...]) -> None:
    """Raises ConfigError for invalid keys."""
    for key in keys:
        if not is_public(key):
            raise ConfigError(f'proxy trusted key "{key}" is invalid')
