"""Authentication: checks the credentials of CONNECT against the options.

Options may have one user with a password, a token, or users, each in an account; without any of them every
client is accepted. A user is identified by password, by the nkey's signature of the nonce, or by its TLS
certificate. With operators, `operators.Operators` authenticates by JWT instead.

`passwords` compares passwords, and moves slow comparisons to threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from penstock.server.auth.passwords import Passwords, is_bcrypt, stand_in
from penstock.server.config.server_options import GLOBAL_ACCOUNT, ServerOptions, User, WebsocketOptions

if TYPE_CHECKING:
    from penstock.protocol.claims import UserClaims
    from penstock.routing.permissions import Permissions

__all__ = ["GLOBAL_ACCOUNT", "Authenticator", "ConfiguredUsers", "Credentials", "Identity"]


class Credentials(Struct, frozen=True):
    """Credentials of a client; empty = not provided."""

    user: str = ""
    password: str = ""
    token: str = ""
    nkey: str = ""
    sig: str = ""
    jwt: str = ""
    nonce: str = ""
    """The nonce that the client had to sign."""
    host: str = ""
    """The client's address."""
    connection_type: str = "STANDARD"
    certificate: bytes | None = None
    """The TLS certificate, DER, with certificate authentication; b"" = the client has none, None = not
    used."""

    @property
    def is_anonymous(self) -> bool:
        """Whether no credential identifies a configured user."""
        return not (self.user or self.password or self.token or self.nkey)


class Identity(Struct, frozen=True):
    """The authenticated identity: account, user name (for logs and connz) and permissions."""

    account: str
    user: str
    permissions: Permissions | None = None
    claims: UserClaims | None = None
    """Claims of the user's JWT, with the limits of its signing key's scope; None without JWT."""
    issuer_key: str = ""
    """The key, or account, that issued the nkey user."""
    expires_ns: int = 0
    """Time at which the session expires, ns since 1970; 0 = never."""
    proxy_required: bool = False
    """The client must connect through a trusted proxy."""
    max_payload: int = -1
    """Maximum bytes of a message; -1 = the limit of account and server."""
    max_subscriptions: int = -1
    """Maximum subscriptions; -1 = the limit of account and server."""


class Authenticator(Protocol):
    """Checks credentials."""

    required: bool
    """`auth_required` of INFO."""
    needs_nonce: bool
    """Whether INFO contains a nonce."""

    def check(self, credentials: Credentials) -> Identity | None:
        """The identity for these credentials; None when they are refused."""

    def is_slow(self, credentials: Credentials) -> bool:
        """Whether `check` may take so long that a thread should run it. `check` is thread-safe in that
        case."""

    def has_user(self, name: str) -> bool:
        """Whether a user of this name is configured."""


class ConfiguredUsers:
    """Authenticates the users of the options.

    Args:
        options: the server's options.
        websocket: for WebSocket clients, if the block has its own user, token or `no_auth_user`.
        passwords: cache of verified passwords, kept across reloads; None = a new one.
    """

    def __init__(
        self,
        options: ServerOptions,
        websocket: WebsocketOptions | None = None,
        passwords: Passwords | None = None,
    ) -> None:
        single = websocket or options
        self._token = single.token
        self._users = {user.name: user for user in options.all_users()}
        # The official server has no such option for the WebSocket block's own user.
        self._proxy_required = websocket is None and options.proxy_required
        if single.user:
            self._users[single.user] = User(
                name=single.user, password=single.password, proxy_required=self._proxy_required
            )
        self._no_auth_user = single.no_auth_user
        self._passwords = passwords or Passwords()
        self._stand_in = stand_in(user.password for user in self._users.values())
        self.configured = bool(self._token or self._users)
        self.required = self.configured and not self._no_auth_user
        listeners = (options.tls, options.websocket.tls if options.websocket is not None else None)
        self._maps = any(tls is not None and tls.verify_and_map for tls in listeners)
        self.needs_nonce = any(user.nkey for user in self._users.values())

    def check(self, credentials: Credentials) -> Identity | None:
        if not self.configured:
            return Identity(GLOBAL_ACCOUNT, credentials.user)
        if self._token:
            proven = self._passwords.match(credentials.token, self._token)
            required = self._proxy_required
            return Identity(GLOBAL_ACCOUNT, "token", proxy_required=required) if proven else None
        if credentials.nkey and self.needs_nonce:
            return self._signer(credentials)
        if credentials.certificate is not None:
            return self._mapped(credentials, credentials.certificate)
        if self._no_auth_user and credentials.is_anonymous:
            return _identity(self._users[self._no_auth_user], credentials)
        known = self._users.get(credentials.user)
        if known is not None and (known.nkey or (self._maps and not known.password)):
            known = None  # identified by key or certificate, which is not provided here
        # Every failure takes as long as a comparison, so that timing does not reveal user names. With bcrypt
        # hashes that is the time of one hash, for unknown names and plain passwords as well.
        expected = known.password if known is not None else self._stand_in or "\x00"
        matches = self._passwords.match(credentials.password, expected)
        if not matches and self._stand_in and not is_bcrypt(expected):
            self._passwords.match(credentials.password, self._stand_in)
        return _identity(known, credentials) if matches and known is not None else None

    def is_slow(self, credentials: Credentials) -> bool:
        if self._token:
            return self._passwords.is_slow(credentials.token, self._token)
        if not self._stand_in or (self._no_auth_user and credentials.is_anonymous):
            return False
        if credentials.certificate is not None:
            return True  # only `check` can tell whose it is
        known = self._users.get(credentials.user)
        if known is None or not known.password:
            return True
        if is_bcrypt(known.password):
            return self._passwords.is_slow(credentials.password, known.password)
        return not self._passwords.match(credentials.password, known.password)

    def has_user(self, name: str) -> bool:
        return name in self._users

    def _signer(self, credentials: Credentials) -> Identity | None:
        """The user of an nkey, if the signature is valid."""
        known = self._users.get(credentials.nkey)
        if known is None or not known.nkey:
            return None
        if known.name != self._no_auth_user and not is_signed(credentials, known.name):
            return None
        return _identity(known, credentials)

    def _mapped(self, credentials: Credentials, certificate: bytes) -> Identity | None:
        """The user of a certificate. If the user has a password, it must match as well."""
        if not certificate:
            return None
        from penstock.server.auth.certificate_users import user_of

        kind = credentials.connection_type
        names = [user.name for user in self._users.values()
                 if not user.nkey and kind in (user.connection_types or {kind})]  # fmt: skip
        name = user_of(certificate, names)
        if name is None:
            return None
        known = self._users[name]
        if known.password and not self._passwords.match(credentials.password, known.password):
            return None
        return _identity(known, credentials)


def _identity(user: User, credentials: Credentials) -> Identity | None:
    if user.connection_types and credentials.connection_type not in user.connection_types:
        return None
    issuer = user.account if user.nkey else ""
    return Identity(
        user.account,
        user.name,
        user.permissions,
        issuer_key=issuer,
        proxy_required=user.proxy_required,
    )


def is_signed(credentials: Credentials, public: str) -> bool:
    """Whether the owner of the public key signed the nonce. Accepts both base64 alphabets."""
    from penstock.protocol.nkeys import verify

    signature = _signature(credentials.sig)
    return bool(credentials.nonce) and verify(public, credentials.nonce.encode(), signature)


def _signature(text: str) -> bytes:
    """Decodes a signature: base64url without padding, or standard base64; b"" = neither."""
    from base64 import b64decode, urlsafe_b64decode

    try:
        if "=" not in text and not set("+/") & set(text):
            return urlsafe_b64decode(text + "=" * (-len(text) % 4))
        return b64decode(text, validate=True)
    except ValueError:
        return b""
