"""The blocks `exports` and `imports` of an account in nats.conf.

Entries are parsed one by one here. `routing.imports_exports.check` validates all accounts together; `placed`
adds locations to its errors. Texts are the official server's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from penstock.errors import ConfigError
from penstock.protocol.subjects import has_wildcard
from penstock.routing.imports_exports import (
    RESPONSE_THRESHOLD_NS,
    SAMPLING_MAX,
    AccountSharing,
    AnyExport,
    AnyImport,
    Latency,
    ResponseType,
    ServiceExport,
    ServiceImport,
    StreamExport,
    StreamImport,
    check,
)
from penstock.server.config.block_fields import unknown_field
from penstock.server.config.conf_parser import ConfMap, ConfNode, SourceLocation
from penstock.server.config.values import boolean, duration_text, integer, shown, text

_RESPONSES = {
    "single": ResponseType.SINGLETON,
    "singleton": ResponseType.SINGLETON,
    "stream": ResponseType.STREAMED,
    "chunk": ResponseType.CHUNKED,
    "chunked": ResponseType.CHUNKED,
}
Value = tuple[Any, SourceLocation]


class ImportExportEntry(NamedTuple):
    """An export or import and its location."""

    value: AnyExport | AnyImport
    where: SourceLocation


def placed(accounts: Mapping[str, AccountSharing], entries: list[ImportExportEntry]) -> None:
    """Raises ConfigError, with location, when exports and imports of the accounts are inconsistent."""
    for value, message in check(accounts):
        where = next((entry.where for entry in entries if entry.value is value), None)
        raise where.error(message) if where is not None else ConfigError(message)


def exports(node: ConfNode, name: str) -> list[ImportExportEntry]:
    """Parses an array of maps, each with `stream` or `service`."""
    if not isinstance(node.value, list):
        raise node.where.error(f"Exports should be an array, got {shown(node)}")
    return [ImportExportEntry(_export(entry), entry.where) for entry in node.value]


def imports(node: ConfNode, name: str) -> list[ImportExportEntry]:
    """Parses an array of maps, each with `stream` or `service`, which are maps of `account` and `subject`."""
    if not isinstance(node.value, list):
        raise node.where.error(f"Imports should be an array, got {shown(node)}")
    found = [ImportExportEntry(_import(entry), entry.where) for entry in node.value]
    seen: dict[tuple[str, str], str] = {}
    for value, where in found:
        if not isinstance(value, ServiceImport):
            continue
        key = (value.account, value.local)
        if key in seen:
            raise where.error(
                f'Duplicate service import subject "{value.local}", previously used in import for account'
                f' "{value.account}", subject "{seen[key]}"'
            )
        seen[key] = value.subject
    return found


def _read(
    items: ConfMap, table: Mapping[str, tuple[str, Callable[[ConfNode, str], Any]]]
) -> dict[str, tuple[Any, SourceLocation]]:
    """Parses a map to (value, location) by option."""
    found: dict[str, Value] = {}
    for key, where, node in items:
        entry = table.get(key.lower())
        if entry is None:
            if node.used:
                continue
            raise unknown_field(key, where, table)
        about, read = entry
        if about in found and about in _ONCE:
            raise where.error(_ONCE[about])
        found[about] = (read(node, key.lower()), where)
    return found


_ONCE = {
    "response": "Duplicate response type definition",
    "response_threshold_ns": "Duplicate response threshold detected",
}


def _map(node: ConfNode, kind: str) -> ConfMap:
    if not isinstance(node.value, ConfMap):
        raise node.where.error(f"{kind} Items should be a map with type entry, got {shown(node)}")
    return node.value


def _value(found: dict[str, Value], name: str, default: Any) -> Any:
    return found[name][0] if name in found else default


# -- exports


def _export(node: ConfNode) -> AnyExport:
    found = _read(_map(node, "Export"), _EXPORT)
    _one_kind(node, found, "Export")
    accounts = _value(found, "accounts", ())
    position = _value(found, "account_token_position", 0)
    if "stream" in found:
        for about, said in (("response", "response"), ("response_threshold_ns", "response"),
                            ("latency", "latency"), ("allow_trace", "allow_trace")):  # fmt: skip
            if about in found:
                raise found[about][1].error(f"Detected {said} directive on non-service")
        return StreamExport(
            subject=found["stream"][0], accounts=accounts or None, account_token_position=position
        )
    return ServiceExport(
        subject=found["service"][0],
        accounts=accounts or None,
        account_token_position=position,
        response=_value(found, "response", ResponseType.SINGLETON),
        response_threshold_ns=_value(found, "response_threshold_ns", 0) or RESPONSE_THRESHOLD_NS,
        latency=_value(found, "latency", None),
        allow_trace=_value(found, "allow_trace", False),
    )


def _one_kind(node: ConfNode, found: dict[str, Value], kind: str) -> None:
    """Checks that exactly one of stream and service is given."""
    if "stream" in found and "service" in found:
        first, second = sorted(("stream", "service"), key=list(found).index)
        raise found[second][1].error(f"Detected {second} but already saw a {first}")
    if "stream" not in found and "service" not in found:
        raise node.where.error(f"{kind} Items should have a `stream` or a `service`")


def _names(node: ConfNode, name: str) -> tuple[str, ...]:
    if not isinstance(node.value, list):
        raise node.where.error(f"{name} is {shown(node)}; it must be an array of names")
    return tuple(text(entry, name) for entry in node.value)


def _response(node: ConfNode, name: str) -> ResponseType:
    word = text(node, name)
    found = _RESPONSES.get(word.lower())
    if found is None:
        raise node.where.error(f'Unknown response type: "{word}"')
    return found


def _latency(node: ConfNode, name: str) -> Latency:
    """Parses a subject, or a map of `subject` and `sampling`."""
    if isinstance(node.value, str):
        return Latency(subject=node.value)
    if not isinstance(node.value, ConfMap):
        raise node.where.error(f"Expected latency entry to be a map/struct or string, got {shown(node)}")
    found = _read(node.value, {"subject": ("subject", text), "sampling": ("sampling", _sampling)})
    if "subject" not in found:
        raise node.where.error("Latency subject required, but missing")
    return Latency(subject=found["subject"][0], sampling=_value(found, "sampling", SAMPLING_MAX))


def _sampling(node: ConfNode, name: str) -> int:
    """Parses a percentage, with or without `%`; `headers` is 0."""
    value = node.value
    if isinstance(value, str):
        if value.strip().lower() == "headers":
            return 0
        digits = value.removesuffix("%")
        if not re.fullmatch(r"[+-]?[0-9]{1,9}", digits):
            raise node.where.error(f'Failed to parse latency sample: "{value}" is no number')
        value = int(digits)
    if isinstance(value, bool) or not isinstance(value, int):
        raise node.where.error(f"Expected latency sample to be a string or map/struct, got {shown(node)}")
    if not 1 <= value <= SAMPLING_MAX:
        raise node.where.error("bad sampling percentage, should be 1-100")
    return value


_EXPORT: dict[str, tuple[str, Callable[[ConfNode, str], Any]]] = {
    "stream": ("stream", text),
    "service": ("service", text),
    **dict.fromkeys(("response", "response_type"), ("response", _response)),
    **dict.fromkeys(
        ("threshold", "response_threshold", "response_max_time", "response_time"),
        ("response_threshold_ns", duration_text),
    ),
    "accounts": ("accounts", _names),
    "latency": ("latency", _latency),
    "account_token_position": ("account_token_position", integer),
    "allow_trace": ("allow_trace", boolean),
}


# -- imports


def _import(node: ConfNode) -> AnyImport:
    found = _read(_map(node, "Import"), _IMPORT)
    _one_kind(node, found, "Import")
    kind = "stream" if "stream" in found else "service"
    (account, subject), where = found[kind]
    if not account or not subject:
        raise where.error("Expect an account name and a subject")
    to = _value(found, "to", "")
    if kind == "service":
        if "allow_trace" in found:
            raise found["allow_trace"][1].error("Detected allow_trace directive on a non-stream")
        return ServiceImport(account=account, subject=subject, to=to, share=_value(found, "share", False))
    if "prefix" in found:
        prefix, where = found["prefix"]
        if to:
            raise found["to"][1].error("Stream import can not have a 'prefix' and a 'to' property")
        if has_wildcard(prefix):
            why = "stream import prefix can not contain wildcard tokens"
            raise where.error(f'Error adding stream import "{subject}": {why}')
        to = f"{prefix.removesuffix('.')}.{subject}" if prefix else ""
    return StreamImport(
        account=account, subject=subject, to=to, allow_trace=_value(found, "allow_trace", False)
    )


def _exporter(node: ConfNode, name: str) -> tuple[str, str]:
    if not isinstance(node.value, ConfMap):
        raise node.where.error(f"{name.capitalize()} entry should be an account map, got {shown(node)}")
    found = _read(node.value, {"account": ("account", text), "subject": ("subject", text)})
    return _value(found, "account", ""), _value(found, "subject", "")


_IMPORT: dict[str, tuple[str, Callable[[ConfNode, str], Any]]] = {
    "stream": ("stream", _exporter),
    "service": ("service", _exporter),
    "prefix": ("prefix", text),
    "to": ("to", text),
    "share": ("share", boolean),
    "allow_trace": ("allow_trace", boolean),
}
