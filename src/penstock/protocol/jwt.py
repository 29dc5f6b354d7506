"""NATS JWTs: decoding with signature check, and signing.

    token = encode(UserClaims(subject=user.public, nats=User(payload=-1)), account, now_s=now)
    claims = decode_user(token)

A token is header, claims and signature in base64url, separated by dots. Version 2 signs header and claims.
Version 1 tokens, which sign only the claims and keep other fields outside `nats`, are still accepted.

`decode` checks form, signature, and that the issuer's key may issue such claims. It checks neither the time
nor whether the issuer is trusted; the caller does.

Credentials files hold a token and a seed between lines of dashes; `parse_credentials` reads them.

Rejected: PyJWT. It supports neither the algorithm name nor nkeys, and the rest is base64.
"""

from __future__ import annotations

import re
from base64 import b32encode, urlsafe_b64decode, urlsafe_b64encode
from typing import Any, TypeVar, cast

import msgspec

from penstock.errors import MisuseError
from penstock.protocol.claims import (
    ISSUERS,
    KINDS,
    NO_LIMIT,
    VERSION,
    AccountClaims,
    ActivationClaims,
    AnyClaims,
    GenericClaims,
    OperatorClaims,
    UserClaims,
)
from penstock.protocol.nkeys import KeyPair, is_public, verify

TOKEN_BYTES_MAX = 1024 * 1024
OBJECTS_MAX = 20_000  # in claims: a megabyte holds 300,000 empty objects, a quarter of a second of decoding
REPAIR_MAX = 256 * 1024  # bytes; claims that need rewriting before decoding, which is much slower
ALGORITHM = "ed25519-nkey"
ALGORITHM_1 = "ed25519"
_HEADER = b'{"typ":"JWT","alg":"ed25519-nkey"}'
_ARMOUR = re.compile(r"-{3,}[^\n]*-{3,}\r?\n\s*([\w\-.=]+)\s*\r?\n-{3,}[^\n]*-{3,}")
_BASE64URL = re.compile(r"[A-Za-z0-9_-]*")

_NOTHING = msgspec.Raw(b"")
Struct = TypeVar("Struct")
Kind = TypeVar("Kind", OperatorClaims, AccountClaims, UserClaims, ActivationClaims)


def encode(claims: AnyClaims, key: KeyPair, *, now_s: int) -> str:
    """Signs claims.

    Args:
        claims: claims; issuer, id and time of issue are set here.
        key: key pair of the issuer.
        now_s: seconds since 1970.

    Raises:
        MisuseError: no subject, or a key that may not issue such claims.
    """
    if not claims.subject:
        raise MisuseError("these claims have no subject")
    allowed = ISSUERS[type(claims)]
    if allowed and key.prefix not in allowed:
        kinds = " or ".join(prefix.name.lower() for prefix in allowed)
        raise MisuseError(f"{type(claims).__name__} are signed with the key of an {kinds}, not {key!r}")
    claims = msgspec.structs.replace(claims, issuer=key.public, issued_at=now_s, id="")
    claims = msgspec.structs.replace(claims, id=_id_of(claims))
    signed = f"{encode64(_HEADER)}.{encode64(msgspec.json.encode(_marked(claims)))}"
    return f"{signed}.{encode64(key.sign(signed.encode()))}"


def decode(token: str) -> AnyClaims:
    """Decodes a token and checks its signature. Raises MisuseError, whose text never contains the token."""
    if len(token) > TOKEN_BYTES_MAX:
        raise MisuseError(f"token size {len(token)} exceeds maximum of {TOKEN_BYTES_MAX} bytes")
    parts = token.split(".")
    if len(parts) != 3:
        raise MisuseError("expected 3 chunks")
    _check_header(parts[0])
    payload = decode64(parts[1])
    kind, version = _kind(payload)
    claims = _claims(payload, kind, version)
    signed = parts[1] if version <= 1 and kind in KINDS else f"{parts[0]}.{parts[1]}"
    if not verify(claims.issuer, signed.encode(), decode64(parts[2])):
        raise MisuseError(f"claim failed V{1 if version <= 1 else 2} signature verification")
    allowed = ISSUERS[type(claims)]
    if allowed and not is_public(claims.issuer, *allowed):
        raise MisuseError(f"unable to validate expected prefixes - {[prefix.name for prefix in allowed]}")
    return claims


def decode_operator(token: str) -> OperatorClaims:
    """`decode` for an operator's token."""
    return _of_kind(token, OperatorClaims)


def decode_account(token: str) -> AccountClaims:
    """`decode` for an account's token."""
    return _of_kind(token, AccountClaims)


def decode_user(token: str) -> UserClaims:
    """`decode` for a user's token."""
    return _of_kind(token, UserClaims)


def decode_activation(token: str) -> ActivationClaims:
    """`decode` for an activation token."""
    return _of_kind(token, ActivationClaims)


def _of_kind(token: str, kind: type[Kind]) -> Kind:
    claims = decode(token)
    if not isinstance(claims, kind):
        raise MisuseError(f"not {kind.__name__.removesuffix('Claims').lower()} claim")
    return claims


# -- credentials


def parse_token(text: str) -> str:
    """The token in a decorated file, or the text itself without surrounding whitespace."""
    found = _ARMOUR.findall(text)
    return found[0] if found else text.strip()


def parse_seed(text: str) -> str:
    """The seed in a credentials or seed file. Raises MisuseError when there is none."""
    for one in _ARMOUR.findall(text):
        if one.startswith("S"):
            return cast(str, one)
    for line in text.splitlines():
        if line.strip().startswith(("SO", "SA", "SU")):
            return line.strip()
    raise MisuseError("no nkey seed found: there is no line that begins with SU")


def parse_credentials(text: str) -> tuple[str, str]:
    """(token, seed) of a credentials file. Raises MisuseError when one is missing."""
    found = _ARMOUR.findall(text)
    token = next((one for one in found if one.startswith("eyJ")), None)
    if token is None:
        raise MisuseError("no user JWT found between lines of dashes: is it a credentials file?")
    return token, parse_seed(text)


def format_credentials(token: str, seed: str) -> str:
    """A credentials file."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        "************************* IMPORTANT *************************\n"
        "NKEY Seed printed below can be used to sign and prove identity.\n"
        "NKEYs are sensitive and should be treated as secrets.\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n\n"
        "*************************************************************\n"
    )


# -- parts


def encode64(data: bytes) -> str:
    """base64url without padding."""
    return urlsafe_b64encode(data).decode().rstrip("=")


def decode64(text: str) -> bytes:
    """Decodes base64url without padding. Raises MisuseError."""
    if not _BASE64URL.fullmatch(text) or len(text) % 4 == 1:
        raise MisuseError("illegal base64 data")
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


class _Header(msgspec.Struct):
    typ: Any = None
    alg: Any = None


class _Head(msgspec.Struct):
    """The fields that determine how to decode claims. Version 1 has its type outside `nats`."""

    type: msgspec.Raw = _NOTHING
    nats: msgspec.Raw = _NOTHING


class _Body(msgspec.Struct):
    type: msgspec.Raw = _NOTHING
    version: msgspec.Raw = _NOTHING


def _check_header(part: str) -> None:
    header = _read(decode64(part), _Header)
    if not isinstance(header.typ, str) or header.typ.upper() != "JWT":
        raise MisuseError(f"not supported type {_shown(header.typ)}")
    if not isinstance(header.alg, str) or header.alg.lower() not in (ALGORITHM, ALGORITHM_1):
        raise MisuseError(f"unexpected {_shown(header.alg)} algorithm")


def _shown(value: object) -> str:
    return repr(value)[:100]


def _read(data: bytes | msgspec.Raw, kind: type[Struct]) -> Struct:
    """Raises MisuseError for invalid JSON."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MisuseError(f"a JWT with bad JSON: {error}") from None


def _kind(payload: bytes) -> tuple[str, int]:
    """The type and version of claims, such as ("user", 2). Skips all other fields without building them."""
    head = _read(payload, _Head)
    kind = _small(head.type, "")
    if isinstance(kind, str) and kind:
        return kind, 1
    if not bytes(head.nats).startswith(b"{"):
        return "generic", 0
    body = _read(head.nats, _Body)
    kind, version = _small(body.type, ""), _small(body.version, 0)
    if not isinstance(kind, str) or not isinstance(version, int):
        raise MisuseError("the type or version of these claims can't be read")
    if version > VERSION:
        raise MisuseError("JWT was generated by a newer version ")
    return kind, version


def _small(raw: msgspec.Raw, absent: str | int) -> Any:
    """A text or number; None for anything else."""
    data = bytes(raw)
    if not data:
        return absent
    return None if data.startswith((b"{", b"[")) else _read(raw, Any)


def _claims(payload: bytes, kind: str, version: int) -> AnyClaims:
    struct = KINDS.get(kind, GenericClaims)
    if struct is not GenericClaims and version not in (1, VERSION):
        raise MisuseError(f"library supports version {VERSION} or less - received {version}")
    is_old = version == 1 and struct is not GenericClaims
    try:
        return _repaired(payload, struct, kind if is_old else "") if is_old else _decoded(payload, struct)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, AttributeError, TypeError) as error:
        raise MisuseError(f"a JWT with bad claims: {error}") from None


def _decoded(payload: bytes, struct: type[AnyClaims]) -> AnyClaims:
    objects = payload.count(b"{") - 2 * payload.count(b"{{")  # `{{` begins a template, not two objects
    if objects > OBJECTS_MAX:
        raise msgspec.ValidationError(f"{objects} objects; the most is {OBJECTS_MAX}")
    try:
        return msgspec.json.decode(payload, type=struct)
    except msgspec.ValidationError:
        if b"null" not in payload:
            raise
    return _repaired(payload, struct, "")


def _repaired(payload: bytes, struct: type[AnyClaims], old_kind: str) -> AnyClaims:
    """Decodes claims with nulls, or of version 1, when `old_kind` is their type."""
    if len(payload) > REPAIR_MAX:
        raise msgspec.ValidationError(
            f"{len(payload)} bytes with nulls or of version 1; the most is {REPAIR_MAX}"
        )
    found = msgspec.json.decode(payload, type=dict[str, Any])
    if old_kind:
        found = _migrated(found, old_kind)
    return msgspec.convert(_without_nulls(found), struct)


def _migrated(found: dict[str, Any], kind: str) -> dict[str, Any]:
    """Converts version 1 claims to version 2; `nats.version` stays 1."""
    body = dict(found.get("nats") or {})
    body |= {"type": kind, "version": 1, "tags": found.get("tags") or []}
    if kind in ("user", "activation"):
        body["issuer_account"] = found.get("issuer_account") or ""
    if kind == "user":
        body = {"subs": NO_LIMIT, "data": NO_LIMIT, "payload": NO_LIMIT} | body
    if kind == "account":
        body = {name: body[name] for name in _ACCOUNT_1 if name in body}
    return {name: value for name, value in found.items() if name not in ("type", "tags")} | {"nats": body}


_ACCOUNT_1 = ("imports", "exports", "limits", "signing_keys", "revocations", "type", "version", "tags")


def _without_nulls(value: Any) -> Any:
    """Null counts as absent, as in the Go library."""
    if isinstance(value, dict):
        return {name: _without_nulls(one) for name, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value if one is not None] if isinstance(value, list) else value


def _marked(claims: AnyClaims) -> dict[str, Any]:
    """The claims as a dict, including type and version, which are omitted as defaults otherwise."""
    found = msgspec.to_builtins(claims)
    if not isinstance(claims, GenericClaims):
        body = found.setdefault("nats", {})
        body |= {"type": claims.nats.type, "version": VERSION}
    return cast(dict[str, Any], found)


def _id_of(claims: AnyClaims) -> str:
    """The JWT id: a hash of the claims outside `nats`, as computed by the official library."""
    import hashlib

    head = {name: value for name, value in msgspec.to_builtins(claims).items() if name != "nats"}
    digest = hashlib.new("sha512_256", msgspec.json.encode(head)).digest()
    return b32encode(digest).decode().rstrip("=")
