"""Client credentials beyond passwords: nkeys, JWTs, credentials files, callbacks.

Files are read and callbacks called for each connection, so renewed credentials take effect. Unusable
credentials raise CredentialsError before the connection attempt; while reconnecting this counts as a failed
authorization.
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from penstock.client.info import ConnectRequest
from penstock.errors import CredentialsError, MisuseError

if TYPE_CHECKING:
    from penstock.client.options import Options
    from penstock.client.servers import ServerUrl
    from penstock.protocol.proofs import Proof

TokenCallback = Callable[[], "str | Awaitable[str]"]
Secret = str | TokenCallback
"""A user name, password or token, or what returns it for each connection."""
SignatureCallback = Callable[[str], "bytes | Awaitable[bytes]"]
Prove = Callable[[str], Awaitable[dict[str, str]]]
"""Returns the CONNECT fields that prove the identity, given the nonce in INFO."""
Given = TypeVar("Given")


async def load(options: Options) -> Prove | None:
    """Read the credentials in the options; None if they need no proof (passwords, tokens).

    Raises CredentialsError.
    """
    if options.user_jwt_cb is not None:
        return await _from_callbacks(options.user_jwt_cb, options.signature_cb)
    proof = _proof(options)
    if proof is None:
        return None

    async def prove(nonce: str) -> dict[str, str]:
        return proof.fields(nonce)

    return prove


async def login(request: ConnectRequest, options: Options, url: ServerUrl) -> ConnectRequest:
    """CONNECT with the user, password and token for one server. Raises CredentialsError."""
    if url.user is not None or url.token is not None:
        user, password, token = url.user or "", url.password or "", url.token or ""
    else:
        user = await _secret("user", options.user)
        password = await _secret("password", options.password)
        token = await _secret("token", options.token)
    return msgspec.structs.replace(request, user=user, password=password, auth_token=token)


async def _secret(name: str, given: Secret | None) -> str:
    if given is None or isinstance(given, str):
        return given or ""
    try:
        found = await _awaited(given())
    except Exception as error:
        raise CredentialsError(f"the function for {name} raised {type(error).__name__}: {error}") from error
    if not isinstance(found, str):
        raise CredentialsError(f"the function for {name} returned {type(found).__name__}, not str")
    return found


async def with_proof(request: ConnectRequest, prove: Prove, nonce: str) -> ConnectRequest:
    """CONNECT with the proof added. Raises CredentialsError."""
    try:
        return msgspec.structs.replace(request, **await prove(nonce))
    except MisuseError as error:
        raise CredentialsError(str(error)) from error


def _proof(options: Options) -> Proof | None:
    given, text = options.credentials, options.credentials_text
    if options.nkey_seed is options.nkey_seed_file is given is text is None:
        return None
    from penstock.protocol.jwt import parse_token  # rarely needed, so imported late
    from penstock.protocol.proofs import from_credentials, from_seed, from_token

    if options.nkey_seed is not None:
        return _checked("nkey_seed", from_seed, options.nkey_seed)
    if options.nkey_seed_file is not None:
        return _checked(str(options.nkey_seed_file), from_seed, _read(options.nkey_seed_file))
    now_s = int(time.time())
    if text is not None:
        return _checked("credentials_text", lambda text: from_credentials(text, now_s), text)
    assert given is not None
    if isinstance(given, tuple):
        token, seed = given
        return _checked("credentials", lambda text: from_token(parse_token(text), seed, now_s), token)
    return _checked(str(given), lambda text: from_credentials(text, now_s), _read(given))


def _checked(what: str, make: Callable[[str], Proof], text: str) -> Proof:
    try:
        return make(text)
    except MisuseError as error:
        raise CredentialsError(f"{what}: {error}") from error


def _read(path: str | os.PathLike[str]) -> str:
    path = Path(path).expanduser()
    try:
        return path.read_text(encoding="utf-8")
    except PermissionError as error:
        raise CredentialsError(
            f"{path}: this user may not read it; it must own the file, or be given leave (mode 600)"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise CredentialsError(f"{path}: can not be read: {error}") from error


async def _from_callbacks(token_cb: TokenCallback, sign_cb: SignatureCallback | None) -> Prove:
    from penstock.protocol.jwt import encode64
    from penstock.protocol.proofs import check_token

    token = await _awaited(token_cb())
    try:
        check_token(token, int(time.time()))
    except MisuseError as error:
        raise CredentialsError(f"user_jwt_cb: {error}") from error

    async def prove(nonce: str) -> dict[str, str]:
        if sign_cb is None or not nonce:  # a bearer token needs no signature
            return {"jwt": token}
        return {"jwt": token, "sig": encode64(await _awaited(sign_cb(nonce)))}

    return prove


async def _awaited(given: Given | Awaitable[Given]) -> Given:
    return await given if inspect.isawaitable(given) else given
