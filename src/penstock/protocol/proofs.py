"""How a client proves who it is: a key, perhaps with a token, becomes fields of CONNECT.

Reading files, clocks and callbacks are for who connects; here is what both the asyncio client and the Spark
source do with what they read. What can't be used raises MisuseError, before anything is sent and without
showing a secret.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from penstock.errors import MisuseError
from penstock.protocol.jwt import decode_user, encode64, parse_credentials, parse_seed
from penstock.protocol.nkeys import KeyPair, Prefix


@dataclass(frozen=True)
class Proof:
    """A user's key, and its token where it has one."""

    key: KeyPair
    token: str = ""

    def fields(self, nonce: str) -> dict[str, str]:
        """What CONNECT says; nonce: what INFO asked to sign, "" = nothing.

        Raises MisuseError when a key is all there is, and the server asks for no signature.
        """
        if not nonce and not self.token:
            raise MisuseError("the server asks for no signature: it knows no users with nkeys")
        found = {"jwt": self.token} if self.token else {"nkey": self.key.public}
        if nonce:
            found["sig"] = encode64(self.key.sign(nonce.encode()))
        return found


def from_seed(text: str) -> Proof:
    """The proof of a user's seed, alone or in the lines of a file. Raises MisuseError."""
    key = KeyPair(parse_seed(text))
    if key.prefix is not Prefix.USER:
        raise MisuseError(f"this is the seed of an {key.prefix.name.lower()}; a user's begins with SU")
    return Proof(key)


def from_token(token: str, seed: str, now_s: int) -> Proof:
    """The proof of a user's token and seed. Raises MisuseError; now_s: seconds since 1970."""
    key = from_seed(seed).key
    check_token(token, now_s)
    if decode_user(token).subject != key.public:
        raise MisuseError(f"the JWT is not that of the seed, whose public key is {key.public}")
    return Proof(key, token)


def from_credentials(text: str, now_s: int) -> Proof:
    """The proof of a credentials file. Raises MisuseError."""
    token, seed = parse_credentials(text)
    return from_token(token, seed, now_s)


def check_token(token: str, now_s: int) -> None:
    """Raises MisuseError for a token that no server would take: no user's, or expired."""
    claims = decode_user(token)
    if 0 < claims.expires <= now_s:
        since = datetime.fromtimestamp(claims.expires, UTC)
        raise MisuseError(
            f"the JWT of user {claims.name or claims.subject!r} expired at {since:%Y-%m-%d %H:%M:%SZ}"
        )
