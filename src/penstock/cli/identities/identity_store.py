"""Tokens and keys of operators, accounts and users in files, shared with `nats auth` and `nsc`.

    <root>/stores/<operator>/.nsc                                        the mark of a store
    <root>/stores/<operator>/<operator>.jwt
    <root>/stores/<operator>/accounts/<account>/<account>.jwt
    <root>/stores/<operator>/accounts/<account>/users/<user>.jwt
    <root>/keys/keys/<A>/<BC>/<ABC...>.nk                                a seed, by its public key
    <root>/keys/creds/<operator>/<account>/<user>.creds

The root is `$XDG_DATA_HOME/nats/nsc`, by default `~/.local/share/nats/nsc`.

Invariants: directories are readable for the owner only (0700), as are files with seeds (0600). A file is
replaced as a whole, so that no reader sees half of it. A key is never overwritten.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from penstock.cli.private_files import make_private_directory, write_private
from penstock.errors import MisuseError, PenstockError
from penstock.protocol.claims import AccountClaims, OperatorClaims, UserClaims
from penstock.protocol.jwt import (
    decode_account,
    decode_operator,
    decode_user,
    format_credentials,
    parse_token,
)
from penstock.protocol.nkeys import KeyPair, is_public

STORE_VERSION = "1"
KindOfClaims = TypeVar("KindOfClaims", OperatorClaims, AccountClaims, UserClaims)


class IdentityError(PenstockError):
    """An operator, account, user or key is missing, exists already or cannot be read."""


@dataclass(frozen=True)
class SignedIdentity(Generic[KindOfClaims]):
    """An operator, account or user: its name in the store, its token and the claims in it."""

    name: str
    token: str
    claims: KindOfClaims

    @property
    def subject(self) -> str:
        """Its public key."""
        return self.claims.subject


def default_root() -> Path:
    """The directory that the official tools use."""
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "nats" / "nsc"


class IdentityStore:
    """Reads and writes the files below `root`. Nothing is created before the first write."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._stores = root / "stores"
        self._keys = root / "keys"

    # --- operators -----------------------------------------------------------------------------

    def operators(self) -> list[str]:
        """Names of all operators, sorted."""
        return sorted(path.parent.name for path in self._stores.glob("*/.nsc"))

    def operator(self, name: str) -> SignedIdentity[OperatorClaims]:
        """An operator. Raises IdentityError, which names those that exist."""
        path = self._stores / check_identity_name(name, "operator") / f"{name}.jwt"
        if not path.exists():
            raise IdentityError(f"there is no operator {name!r}{_known(self.operators())}")
        token = _read_token(path)
        return SignedIdentity(name, token, _decoded(decode_operator, token, path))

    def save_operator(self, name: str, token: str) -> None:
        """Create or replace an operator's token."""
        folder = self._stores / check_identity_name(name, "operator")
        mark = {"managed": False, "name": name, "kind": "operator", "version": STORE_VERSION}
        make_private_directory(folder / "accounts")
        if not (folder / ".nsc").exists():
            write_private(folder / ".nsc", msgspec.json.encode(mark).decode())
        write_private(folder / f"{name}.jwt", token)

    # --- accounts ------------------------------------------------------------------------------

    def accounts(self, operator: str) -> list[str]:
        """Names of an operator's accounts, sorted."""
        return sorted(path.stem for path in (self._stores / operator / "accounts").glob("*/*.jwt"))

    def account(self, operator: str, name: str) -> SignedIdentity[AccountClaims]:
        """An account. Raises IdentityError, which names those that exist."""
        path = self._account(operator, name) / f"{name}.jwt"
        if not path.exists():
            known = _known(self.accounts(operator))
            raise IdentityError(f"operator {operator!r} has no account {name!r}{known}")
        token = _read_token(path)
        return SignedIdentity(name, token, _decoded(decode_account, token, path))

    def save_account(self, operator: str, name: str, token: str) -> None:
        """Create or replace an account's token."""
        folder = self._account(operator, name)
        write_private(folder / f"{name}.jwt", token)

    def remove_account(self, operator: str, name: str) -> None:
        """Remove an account with its users, and their keys. Raises IdentityError."""
        found = self.account(operator, name)
        for user in self.users(operator, name):
            self.remove_user(operator, name, user)
        for key in (found.subject, *found.claims.nats.scopes):
            self.key_path(key).unlink(missing_ok=True)
        folder = self._account(operator, name)
        (folder / f"{name}.jwt").unlink()
        for path in (folder / "users", folder):
            if path.exists():
                path.rmdir()

    def _account(self, operator: str, name: str) -> Path:
        checked = check_identity_name(name, "account")
        return self._stores / check_identity_name(operator, "operator") / "accounts" / checked

    # --- users ---------------------------------------------------------------------------------

    def users(self, operator: str, account: str) -> list[str]:
        """Names of an account's users, sorted."""
        return sorted(path.stem for path in (self._account(operator, account) / "users").glob("*.jwt"))

    def user(self, operator: str, account: str, name: str) -> SignedIdentity[UserClaims]:
        """A user. Raises IdentityError, which names those that exist."""
        path = self._user(operator, account, name)
        if not path.exists():
            known = _known(self.users(operator, account))
            raise IdentityError(f"account {account!r} has no user {name!r}{known}")
        token = _read_token(path)
        return SignedIdentity(name, token, _decoded(decode_user, token, path))

    def save_user(self, operator: str, account: str, name: str, token: str) -> None:
        """Create or replace a user's token."""
        path = self._user(operator, account, name)
        write_private(path, token)

    def remove_user(self, operator: str, account: str, name: str) -> None:
        """Remove a user with its key and credentials file. Raises IdentityError."""
        found = self.user(operator, account, name)
        self.key_path(found.subject).unlink(missing_ok=True)
        self.credentials_path(operator, account, name).unlink(missing_ok=True)
        self._user(operator, account, name).unlink()

    def _user(self, operator: str, account: str, name: str) -> Path:
        return self._account(operator, account) / "users" / f"{check_identity_name(name, 'user')}.jwt"

    # --- keys ----------------------------------------------------------------------------------

    def key_path(self, public: str) -> Path:
        """The file of a key's seed. Raises IdentityError for what is no public key."""
        if not is_public(public):
            raise IdentityError(f"{public!r} is not a public key")
        return self._keys / "keys" / public[0] / public[1:3] / f"{public}.nk"

    def has_key(self, public: str) -> bool:
        """Whether the seed of a public key is here."""
        return self.key_path(public).exists()

    def key(self, public: str) -> KeyPair:
        """The key pair of a public key. Raises IdentityError if its seed is not here."""
        path = self.key_path(public)
        try:
            return KeyPair(path.read_text().strip())
        except FileNotFoundError:
            text = f"the seed of {public} is not in {self._keys}; import it or use another key"
            raise IdentityError(text) from None
        except MisuseError as error:
            raise IdentityError(f"{path}: {error}") from error

    def save_key(self, pair: KeyPair) -> None:
        """Store a new key's seed."""
        path = self.key_path(pair.public)
        make_private_directory(path.parent)
        if not path.exists():
            write_private(path, pair.seed)

    def credentials_path(self, operator: str, account: str, user: str) -> Path:
        """Where the official tools keep a user's credentials file."""
        return self._keys / "creds" / operator / account / f"{user}.creds"

    def credentials(self, user: SignedIdentity[UserClaims]) -> str:
        """The text of a user's credentials file. Raises IdentityError if its seed is not here."""
        return format_credentials(user.token, self.key(user.subject).seed)


def check_identity_name(name: str, what: str) -> str:
    """Raises IdentityError for what cannot name a file."""
    if not name or name.strip() != name or name in (".", "..") or set(name) & {"/", "\\", "\0"}:
        raise IdentityError(f"{name!r} cannot name an {what}: it is the name of a file as well")
    return name


def _read_token(path: Path) -> str:
    return parse_token(path.read_text(encoding="utf-8"))


def _decoded(decode: Callable[[str], KindOfClaims], token: str, path: Path) -> KindOfClaims:
    try:
        return decode(token)
    except MisuseError as error:
        raise IdentityError(f"{path}: {error}") from error


def _known(names: list[str]) -> str:
    return f"; there are {', '.join(names)}" if names else "; there is none yet"
