"""Client credentials: turns a key, with or without a token, into fields of CONNECT.

The asyncio client and the Spark source share this module; they read the files and clocks themselves. Unusable
credentials raise MisuseError before anything is sent; no error text contains a secret.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

from penstock.errors import MisuseError
from penstock.protocol.jwt import decode_user, encode64, parse_credentials, parse_seed
from penstock.protocol.nkeys import KeyPair, Prefix


@dataclass(frozen=True)
class Proof:
    """A user's key pair, and its token if it has one."""

    key: KeyPair
    token: str = ""

    def fields(self, nonce: str) -> dict[str, str]:
        """The fields for CONNECT. `nonce`: the nonce of INFO, "" = none.

        Raises MisuseError when the key needs a nonce and the server sent none.
        """
        if not nonce and not self.token:
            raise MisuseError("the server asks for no signature: it knows no users with nkeys")
        found = {"jwt": self.token} if self.token else {"nkey": self.key.public}
        if nonce:
            found["sig"] = encode64(self.key.sign(nonce.encode()))
        return found


def from_seed(text: str) -> Proof:
    """Credentials from a user's seed, plain or in a seed file. Raises MisuseError."""
    key = KeyPair(parse_seed(text))
    if key.prefix is not Prefix.USER:
        raise MisuseError(f"this is the seed of an {key.prefix.name.lower()}; a user's begins with SU")
    return Proof(key)


def from_token(token: str, seed: str, now_s: int) -> Proof:
    """Credentials from a user's token and seed. `now_s`: s since 1970. Raises MisuseError."""
    key = from_seed(seed).key
    check_token(token, now_s)
    if decode_user(token).subject != key.public:
        raise MisuseError(f"the JWT is not that of the seed, whose public key is {key.public}")
    return Proof(key, token)


def from_credentials(text: str, now_s: int) -> Proof:
    """Credentials from the text of a credentials file. Raises MisuseError."""
    token, seed = parse_credentials(text)
    return from_token(token, seed, now_s)


def check_token(token: str, now_s: int) -> None:
    """Raises MisuseError for a token that is not a user's, or has expired."""
    claims = decode_user(token)
    if 0 < claims.expires <= now_s:
        since = datetime.fromtimestamp(claims.expires, timezone.utc)
        raise MisuseError(
            f"the JWT of user {claims.name or claims.subject!r} expired at {since:%Y-%m-%d %H:%M:%SZ}"
        )
