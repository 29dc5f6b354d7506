"""Auth callout: a service among the clients decides who another client is.

A client that the configuration does not let in (or whose account leaves it to a service) is described in a
token that the server signs, and published to `$SYS.REQ.USER.AUTH` in the service's account. The answer is a
token of the service with the token of a user in it: for just the key that was made for this question, to just
this server. It places the client in an account, with permissions and perhaps an end.

Until the answer is there the client is not read from; without one in time it is refused. The service itself
logs in as one of `auth_users`, whom nobody is asked about. Who is in the service's account may not publish to
the subject of questions.

What the official server's `xkey` encrypts is not supported: a configuration with it is refused by name. Nor
are accounts known by tokens that leave their users to a service: they let in its own users alone.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, MisuseError
from penstock.kernels.sinks import Sink
from penstock.protocol.claims import GenericClaims, UserClaims
from penstock.protocol.ids import NuidGenerator
from penstock.protocol.jwt import decode, decode_user, encode
from penstock.protocol.nkeys import KeyPair, Prefix, is_public
from penstock.routing.permissions import Entry, Permissions
from penstock.server.account_claims import connection_types_of, permissions_of
from penstock.server.auth import Credentials, Identity
from penstock.server.identity import VERSION
from penstock.server.operators import time_left_ns
from penstock.server.options import GLOBAL_ACCOUNT, NS, CalloutOptions

if TYPE_CHECKING:
    from penstock.server.connect_options import ConnectOptions
    from penstock.server.server import Server
    from penstock.server.session import Session

SUBJECT = "$SYS.REQ.USER.AUTH"
AUDIENCE = "nats-authorization-request"
Decided = Callable[[Identity | None], None]


class AuthCallout:
    """Asks the service of a server's configuration.

    Args:
        server: has the options, the accounts and the clock.
        options: whom to ask, and whose answers count.
    """

    def __init__(self, server: Server, options: CalloutOptions) -> None:
        self._server = server
        self._options = options
        assert server.key is not None  # there is one where the options have a callout
        self._key = server.key
        self._new_id = NuidGenerator(lambda n: int.from_bytes(os.urandom(16), "little") % n)

    def is_asked(self, credentials: Credentials, identity: Identity | None) -> bool:
        """Does the service decide about this client, whom the configuration let in, or did not?"""
        if identity is not None and not self._is_delegated(identity.account):
            return False
        return (credentials.nkey or credentials.user) not in self._options.auth_users

    def _is_delegated(self, account: str) -> bool:
        """Does the service decide about configured users of this account?"""
        allowed = self._options.allowed_accounts
        return account == GLOBAL_ACCOUNT or not allowed or account in allowed

    def let_in(self, identity: Identity) -> Identity:
        """One of `auth_users`, or somebody whom the service is not asked about."""
        return self._restricted(identity) if self._is_delegated(identity.account) else identity

    def _restricted(self, identity: Identity) -> Identity:
        """Who is in the service's account asks no questions in the server's name."""
        if identity.account != self._options.account:
            return identity
        permissions = identity.permissions or Permissions()
        denied = replace(permissions.publish, deny=(*permissions.publish.deny, Entry(SUBJECT)))
        return replace(identity, permissions=replace(permissions, publish=denied))

    def ask(self, session: Session, given: ConnectOptions, decided: Decided) -> None:
        """Asks about a client; `decided` is called once, soon or when the time for it is over."""
        server, account = self._server, self._server.account(self._options.account)
        user = KeyPair.from_bytes(Prefix.USER, os.urandom(32))
        reply = f"$SYS._INBOX.{self._new_id()}".encode()
        waiting = True

        def end(identity: Identity | None, why: str = "") -> None:
            nonlocal waiting
            if not waiting:
                return
            waiting = False
            timer.cancel()
            account.unsubscribe(subscription)
            if why:
                server.log.warning(f"{session.name} - {why}")
            loop.call_soon(decided, identity)  # the answer is being routed: nothing else may be meanwhile

        def answered(
            subject: bytes, again: bytes, header: bytes, payload: bytes, origin: Sink | None
        ) -> None:
            try:
                identity = self._identity(payload, user.public)
            except (MisuseError, ConfigError) as error:
                end(None, str(error))
            else:
                end(identity)

        loop = asyncio.get_running_loop()
        timeout_s = server.options.auth_timeout_ns / NS
        timer = loop.call_later(timeout_s, lambda: end(None, "auth callout: no answer in time"))
        subscription = account.subscribe_service(reply, answered)
        question = self._question(session, given, user.public)
        if not account.publish(SUBJECT.encode(), question.encode(), reply=reply):
            end(None, f"auth callout: nobody listens to {SUBJECT} in account {account.name}")

    # -- the question

    def _question(self, session: Session, given: ConnectOptions, user: str) -> str:
        server = self._server
        host, _ = session.connection.peer
        about: dict[str, Any] = {
            "host": host,
            "id": session.cid,
            "user": given.nkey or given.user,
            "name": given.name,
            "kind": "Client",
            "type": "websocket" if session.connection.kind == "websocket" else "nats",
            "nonce": session.nonce if given.sig else "",
        }
        shown = {
            "jwt": given.jwt,
            "nkey": given.nkey,
            "sig": given.sig,
            "auth_token": given.auth_token,
            "user": given.user,
            "pass": given.password,
            "name": given.name,
            "lang": given.lang,
            "version": given.version,
        }
        now_s = server.clock() // NS
        body: dict[str, Any] = {
            "server_id": {
                "name": server.server_name,
                "host": server.options.host,
                "id": server.server_id,
                "version": VERSION,
            },
            "user_nkey": user,
            "client_info": _without_empty(about),
            "connect_opts": {**_without_empty(shown), "protocol": given.protocol},
            "type": "authorization_request",
            "version": 2,
        }
        encrypted = session.connection.tls()
        if encrypted[0]:
            body["client_tls"] = {"version": encrypted[0], "cipher": encrypted[1], **_certificates(session)}
        claims = GenericClaims(
            audience=AUDIENCE,
            subject=self._options.issuer,
            expires=now_s + max(1, server.options.auth_timeout_ns // NS),
            nats=body,
        )
        return encode(claims, self._key, now_s=now_s)

    # -- the answer

    def _identity(self, payload: bytes, expected: str) -> Identity:
        """Who the client is. Raises MisuseError or ConfigError."""
        if not payload:
            raise MisuseError('auth callout violation: "no reason supplied"')
        answer = decode(payload.decode("utf-8", "replace"))
        if not isinstance(answer, GenericClaims) or answer.nats.get("type") != "authorization_response":
            raise MisuseError("not an authorization response claim")
        if not is_public(answer.issuer, Prefix.ACCOUNT):
            raise MisuseError("the authorization response is not signed by an account")
        if answer.subject != expected:
            raise MisuseError("auth callout violation: auth callout response is not for expected user")
        if answer.audience != self._server.server_id:
            raise MisuseError("auth callout violation: auth callout response is not for server")
        if answer.nats.get("error"):
            raise MisuseError(f"auth callout service returned an error: {answer.nats['error']}")
        user = decode_user(str(answer.nats.get("jwt", "")))
        now_s = self._server.clock() // NS
        problem = next(iter((*user.problems(), *answer.problems())), "")
        problem = problem or user.time_problem(now_s) or answer.time_problem(now_s)
        if problem:
            raise MisuseError(f"Error validating user JWT: {problem}")
        if user.subject != expected:
            raise MisuseError(f"Expected authorized user of {expected!r} but got {user.subject!r}")
        return self._placed(user)

    def _placed(self, user: UserClaims) -> Identity:
        if user.nats.issuer_account:
            raise MisuseError("error non operator mode account: attempted to use issuer_account")
        if user.issuer != self._options.issuer:
            raise MisuseError(
                f"wrong issuer for auth callout response, expected {self._options.issuer!r} got"
                f" {user.issuer!r}"
            )
        if connection_types_of(user.nats) is None:
            raise MisuseError("authorized user using invalid connection type")
        account = user.audience
        if account not in self._server.accounts:
            raise MisuseError(f"no valid account {account!r} for auth callout response")
        expires_ns = user.expires * NS
        if user.nats.times:
            ends_ns = self._server.clock() + time_left_ns(user.nats, self._server.clock())
            expires_ns = min(expires_ns or ends_ns, ends_ns)
        identity = Identity(
            account=account,
            user=user.name or user.subject,
            permissions=permissions_of(user.nats),
            issuer_key=account,
            expires_ns=expires_ns,
        )
        return self._restricted(identity)


def _certificates(session: Session) -> dict[str, list[str]]:
    der = session.connection.certificate()
    if not der:
        return {}
    import ssl

    return {"certs": [ssl.DER_cert_to_PEM_cert(der)]}


def _without_empty(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if value not in ("", 0)}
