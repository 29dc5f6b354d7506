"""Maps a TLS client certificate to a user (`verify_and_map`).

Order as in the official server: each e-mail address, DNS name and URI of the alternative names that equals a
user name; then the subject as a distinguished name (RFC 4514) against all user names that are one, with parts
in the same order, and then in any order; then the subject in Go's format, with domain components at the end,
and without them.

As there, user names are parsed leniently: spaces around parts are ignored, types are case-insensitive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509

Part = frozenset[tuple[str, str]]
"""A relative distinguished name: (TYPE, value)."""

_DC = "0.9.2342.19200300.100.1.25"
_TYPES = {
    "2.5.4.3": "CN",
    "2.5.4.5": "SERIALNUMBER",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "2.5.4.17": "POSTALCODE",
    "0.9.2342.19200300.100.1.1": "UID",
    _DC: "DC",
}
_GO_ORDER = (
    "2.5.4.5",
    "2.5.4.3",
    "2.5.4.17",
    "2.5.4.9",
    "2.5.4.8",
    "2.5.4.7",
    "2.5.4.11",
    "2.5.4.10",
    "2.5.4.6",
)
_SPECIAL = ' "#+,;<=>\\'


def user_of(certificate: bytes, users: Iterable[str]) -> str | None:
    """The user of a certificate (DER); None when there is none."""
    from cryptography import x509

    names = tuple(users)
    found = x509.load_der_x509_certificate(certificate)
    for name in _alternative_names(found):
        if name in names:
            return name
    subject = _parts_of(found)
    if subject is not None:
        known = [(name, parts) for name in names if (parts := parse(name))]
        for name, parts in known:
            if parts == subject:
                return name
        for name, parts in known:
            if len(parts) == len(subject) and sorted(map(sorted, parts)) == sorted(map(sorted, subject)):
                return name
    plain = _as_go_writes_it(found.subject)
    components = [f"DC={one.value!s}" for one in found.subject if one.oid.dotted_string == _DC]
    for text in ((",".join([plain, *components]) if components else plain), plain):
        if text in names:
            return text
    return None


def _alternative_names(certificate: x509.Certificate) -> Iterator[str]:
    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return
    for kind in (x509.RFC822Name, x509.DNSName, x509.UniformResourceIdentifier):
        yield from names.get_values_for_type(kind)


def _parts_of(certificate: x509.Certificate) -> tuple[Part, ...] | None:
    """The subject, most specific part first; None when it has a type without a textual name."""
    parts = []
    for rdn in reversed(certificate.subject.rdns):
        if any(one.oid.dotted_string not in _TYPES for one in rdn):
            return None
        parts.append(frozenset((_TYPES[one.oid.dotted_string], str(one.value)) for one in rdn))
    return tuple(parts)


def _as_go_writes_it(subject: x509.Name) -> str:
    """The subject in Go's order: values of one type together, without types that Go does not know."""
    parts = []
    for oid in _GO_ORDER:
        values = [_escaped(str(one.value)) for one in subject if one.oid.dotted_string == oid]
        if oid in ("2.5.4.3", "2.5.4.5"):
            values = values[-1:]  # Go keeps the last value
        if values:
            parts.append("+".join(f"{_TYPES[oid]}={value}" for value in values))
    return ",".join(parts)


def _escaped(value: str) -> str:
    """Escapes a value as in RFC 2253."""
    text = "".join("\\" + c if c in ',+"\\<>;' else c for c in value)
    if text[:1] in (" ", "#"):
        text = "\\" + text
    return text[:-1] + "\\ " if text.endswith(" ") and len(text) > 1 else text


@lru_cache(maxsize=4096)
def parse(text: str) -> tuple[Part, ...] | None:
    """Parses a distinguished name; None when malformed."""
    parts: list[Part] = []
    current: list[tuple[str, str]] = []
    for token, end in _pieces(text):
        kind, found, value = token
        if not found or not kind or value.startswith("#"):
            return None
        current.append((kind.upper(), value))
        if end != "+":
            parts.append(frozenset(current))
            current = []
    return tuple(parts) if parts and not current else None


def _pieces(text: str) -> Iterator[tuple[tuple[str, bool, str], str]]:
    """Yields ((type, whether there was a `=`, value), the `,`, `+` or "" after it)."""
    kind, found, buffer, kept = "", False, bytearray(), 0  # kept: length protected from stripping
    i = 0
    data = text.encode()
    while i <= len(data):
        char = data[i : i + 1].decode("latin-1")
        if char in ("", ",", "+"):
            yield (kind, found, _stripped(buffer, kept)), char
            kind, found, buffer, kept = "", False, bytearray(), 0
        elif char == "\\":
            step, escaped = _unescape(data[i + 1 : i + 3])
            if not step:
                yield ("", False, ""), ""
                return
            buffer += escaped
            kept = len(buffer)
            i += step
        elif char == "=" and not found:
            kind, found, buffer, kept = _stripped(buffer, kept), True, bytearray(), 0
        elif char != " " or buffer:
            buffer += data[i : i + 1]
        i += 1


def _stripped(buffer: bytearray, kept: int) -> str:
    text = bytes(buffer)
    return (text[:kept] + text[kept:].rstrip(b" ")).decode("utf-8", "replace")


def _unescape(after: bytes) -> tuple[int, bytes]:
    """(characters of the escape after its backslash, decoded bytes); 0 characters = not an escape."""
    if after[:1].decode("latin-1") in tuple(_SPECIAL):
        return 1, after[:1]
    try:
        return (2, bytes.fromhex(after.decode("ascii"))) if len(after) == 2 else (0, b"")
    except ValueError:
        return 0, b""
