"""Who may connect: the credentials of a CONNECT against those of the options.

One user with a password, a token, or users, each in its account; nothing configured lets everybody in. A user
is known by its password, by the signature of its nkey under the nonce of INFO, or by the certificate its TLS
handshake showed. Where operators are trusted, `operator_auth` decides instead, by tokens.

How passwords are compared, and what to do about those that take long, is in `passwords`.
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
    """What a client shows of itself; empty = not shown."""

    user: str = ""
    password: str = ""
    token: str = ""
    nkey: str = ""
    sig: str = ""
    jwt: str = ""
    nonce: str = ""
    """What the client had to sign."""
    host: str = ""
    """The address it comes from."""
    connection_type: str = "STANDARD"
    certificate: bytes | None = None
    """Its TLS certificate, DER, where that says who it is; b"" = it has none, None = it says nothing."""

    @property
    def names_nobody(self) -> bool:
        """Nothing is shown that a configured user could be known by."""
        return not (self.user or self.password or self.token or self.nkey)


class Identity(Struct, frozen=True):
    """Who a connection is: its account, the name that logs and connz show, and what it may do."""

    account: str
    user: str
    permissions: Permissions | None = None
    claims: UserClaims | None = None
    """What the user's token says, where one let it in; limits as its signing key's scope has them."""
    issuer_key: str = ""
    """Whose signature, or whose configuration, makes the owner of an nkey a user."""
    expires_ns: int = 0
    """When it must go; 0 = never."""
    proxy_required: bool = False
    """It must come through a proxy that is trusted."""
    max_payload: int = -1
    """Most bytes of a message; -1 = as many as its account and the server allow."""
    max_subscriptions: int = -1
    """Most subscriptions; -1 = as many as its account and the server allow."""


class Authenticator(Protocol):
    """Checks credentials."""

    required: bool
    """What INFO says as auth_required."""
    needs_nonce: bool
    """INFO brings something to sign."""

    def check(self, credentials: Credentials) -> Identity | None:
        """The identity these credentials prove; None when they are refused."""

    def is_slow(self, credentials: Credentials) -> bool:
        """May `check` take so long that a thread should do it? It is one that any thread may do then."""

    def has_user(self, name: str) -> bool:
        """Is there a user of this name, as far as they are known before they come?"""


class ConfiguredUsers:
    """The users of the options.

    Args:
        options: the server's.
        websocket: where its clients have a single user, a token or a `no_auth_user` of their own.
        passwords: knows what was proven before a reload; None = nothing was.
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
        # The official server has no such thing for WebSocket clients' own user.
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
        if self._no_auth_user and credentials.names_nobody:
            return _identity(self._users[self._no_auth_user], credentials)
        known = self._users.get(credentials.user)
        if known is not None and (known.nkey or (self._maps and not known.password)):
            known = None  # it is known by its key or its certificate, which isn't shown here
        # Every failure takes as long as a comparison: time must not tell which names exist. Where there are
        # bcrypt hashes that is the time of one, for an unknown name and for a plain password, too.
        expected = known.password if known is not None else self._stand_in or "\x00"
        matches = self._passwords.match(credentials.password, expected)
        if not matches and self._stand_in and not is_bcrypt(expected):
            self._passwords.match(credentials.password, self._stand_in)
        return _identity(known, credentials) if matches and known is not None else None

    def is_slow(self, credentials: Credentials) -> bool:
        if self._token:
            return self._passwords.is_slow(credentials.token, self._token)
        if not self._stand_in or (self._no_auth_user and credentials.names_nobody):
            return False
        if credentials.certificate is not None:
            return True  # whose it is, only `check` finds out
        known = self._users.get(credentials.user)
        if known is None or not known.password:
            return True
        if is_bcrypt(known.password):
            return self._passwords.is_slow(credentials.password, known.password)
        return not self._passwords.match(credentials.password, known.password)

    def has_user(self, name: str) -> bool:
        return name in self._users

    def _signer(self, credentials: Credentials) -> Identity | None:
        """The user of an nkey, when the signature is its own."""
        known = self._users.get(credentials.nkey)
        if known is None or not known.nkey:
            return None
        if known.name != self._no_auth_user and not is_signed(credentials, known.name):
            return None
        return _identity(known, credentials)

    def _mapped(self, credentials: Credentials, certificate: bytes) -> Identity | None:
        """The user of a certificate; a password, if it has one, must be given as well."""
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
    """Did the owner of a public key sign the nonce? In base64 of either alphabet."""
    from penstock.protocol.nkeys import verify

    signature = _signature(credentials.sig)
    return bool(credentials.nonce) and verify(public, credentials.nonce.encode(), signature)


def _signature(text: str) -> bytes:
    """The bytes of a signature: base64url without padding, or else standard base64; b"" = neither."""
    from base64 import b64decode, urlsafe_b64decode

    try:
        if "=" not in text and not set("+/") & set(text):
            return urlsafe_b64decode(text + "=" * (-len(text) % 4))
        return b64decode(text, validate=True)
    except ValueError:
        return b""
