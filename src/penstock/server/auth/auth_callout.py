"""Auth callout: a service among the clients authenticates other clients.

The server describes a client that the configuration does not accept (or whose account delegates to a service)
in a token that it signs, and publishes it to `$SYS.REQ.USER.AUTH` in the service's account. The reply is a
token of the service that contains a user token. It is valid only for the key generated for this request, and
for this server. It assigns the account, the permissions and optionally an expiry.

The server does not read from the client until the reply arrives, and refuses it after a timeout. The service
itself logs in as one of `auth_users`, who are exempt. Users in the service's account may not publish to the
request subject.

With a curve key (`xkey`) the request is encrypted for the service, and a header names the server's own curve
key. An encrypted reply needs no trusted signature, because encryption authenticates the sender.

`callout_policies` decides which service is asked and which replies are trusted.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from msgspec import structs

from penstock.errors import ConfigError, MisuseError
from penstock.kernels.wire.sinks import Sink
from penstock.protocol.claims import GenericClaims, UserClaims
from penstock.protocol.curvekeys import NONCE_BYTES
from penstock.protocol.ids import NuidGenerator
from penstock.protocol.jwt import decode, decode_user, encode
from penstock.protocol.nkeys import KeyPair, Prefix, is_public
from penstock.routing.permissions import PermissionEntry, Permissions
from penstock.server.auth.account_claims import connection_types_of, permissions_of
from penstock.server.auth.authenticator import Credentials, Identity
from penstock.server.auth.callout_policies import CalloutPolicy, CalloutService
from penstock.server.auth.operators import time_left_ns
from penstock.server.config.option_checks import NS
from penstock.server.server_identity import VERSION

if TYPE_CHECKING:
    from penstock.server.accounts.account_registry import AccountRegistry
    from penstock.server.connect_message import ConnectMessage
    from penstock.server.links.leaf_session import LeafSession
    from penstock.server.server_context import ServerContext
    from penstock.server.session import Session

SUBJECT = "$SYS.REQ.USER.AUTH"
AUDIENCE = "nats-authorization-request"
XKEY_HEADER = "Nats-Server-Xkey"
TOKEN_START = b"eyJ"
Decided = Callable[[Identity | None], None]


class AuthCallout:
    """Sends auth callout requests and checks the replies.

    Args:
        context: options, clock and keys.
        accounts: the accounts in which services listen.
        policy: selects the service and checks its replies.
    """

    def __init__(self, context: ServerContext, accounts: AccountRegistry, policy: CalloutPolicy) -> None:
        self._context = context
        self._accounts = accounts
        self._policy = policy
        assert context.key is not None  # exists if auth callout is configured
        assert context.curve_key is not None
        self._key, self._curve_key = context.key, context.curve_key
        self._new_id = NuidGenerator(lambda n: int.from_bytes(os.urandom(16), "little") % n)

    def service(self, credentials: Credentials, identity: Identity | None) -> CalloutService | None:
        """The service that must authenticate this client; None = the result of the credentials stands."""
        return self._policy.service(credentials, identity)

    def let_in(self, identity: Identity) -> Identity:
        """Denies publishing to the request subject for users in a service's account."""
        if not self._policy.asks_in(identity.account):
            return identity
        permissions = identity.permissions or Permissions()
        denied = replace(permissions.publish, deny=(*permissions.publish.deny, PermissionEntry(SUBJECT)))
        return structs.replace(identity, permissions=replace(permissions, publish=denied))

    def ask(
        self, service: CalloutService, session: Session | LeafSession, given: ConnectMessage, decided: Decided
    ) -> None:
        """Sends a request about a client. Calls `decided` once, with the reply or after the timeout."""
        context, account = self._context, self._accounts.open(service.account)
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
                context.log.warning(f"{session.name} - {why}")
            loop.call_soon(decided, identity)  # a callback must not run while the reply is routed

        def answered(
            subject: bytes, again: bytes, header: bytes, payload: bytes, origin: Sink | None
        ) -> None:
            try:
                identity = self._identity(service, payload, user.public)
            except (MisuseError, ConfigError) as error:
                end(None, str(error))
            else:
                end(identity)

        loop = asyncio.get_running_loop()
        timeout_s = context.options.auth_timeout_ns / NS
        timer = loop.call_later(timeout_s, lambda: end(None, "auth callout: no answer in time"))
        subscription = account.subscribe_service(reply, answered)
        header, question = b"", self._question(service, session, given, user.public).encode()
        if service.xkey:
            header = f"NATS/1.0\r\n{XKEY_HEADER}: {self._curve_key.public}\r\n\r\n".encode()
            question = self._curve_key.seal(question, service.xkey, os.urandom(NONCE_BYTES))
        if not account.publish(SUBJECT.encode(), question, reply=reply, header=header):
            end(None, f"auth callout: {SUBJECT} has no subscriber in account {account.name}")

    # -- request

    def _question(
        self, service: CalloutService, session: Session | LeafSession, given: ConnectMessage, user: str
    ) -> str:
        context = self._context
        host, _ = session.connection.peer
        about: dict[str, Any] = {
            "host": host,
            "id": session.cid,
            "user": given.nkey or given.user,
            "name": given.name,
            "kind": "Leafnode" if session.connection.kind.startswith("leaf") else "Client",
            "type": "websocket" if session.is_websocket else "nats",
            "nonce": session.nonce if given.sig else "",
        }
        shown = {
            "jwt": service.token,
            "nkey": given.nkey,
            "sig": given.sig,
            "auth_token": given.auth_token,
            "user": given.user,
            "pass": given.password,
            "name": given.name,
            "lang": given.lang,
            "version": given.version,
        }
        now_s = context.clock() // NS
        body: dict[str, Any] = {
            "server_id": {
                "name": context.server_name,
                "host": context.options.host,
                "id": context.server_id,
                "version": VERSION,
            },
            "user_nkey": user,
            "client_info": _without_empty(about),
            "connect_opts": {**_without_empty(shown), "protocol": given.protocol},
            "type": "authorization_request",
            "version": 2,
        }
        if service.xkey:
            body["server_id"]["xkey"] = self._curve_key.public
        encrypted = session.connection.tls()
        if encrypted[0]:
            body["client_tls"] = {"version": encrypted[0], "cipher": encrypted[1], **_certificates(session)}
        claims = GenericClaims(
            audience=AUDIENCE,
            subject=service.subject,
            expires=now_s + max(1, context.options.auth_timeout_ns // NS),
            nats=body,
        )
        return encode(claims, self._key, now_s=now_s)

    # -- reply

    def _identity(self, service: CalloutService, payload: bytes, expected: str) -> Identity:
        """The identity from a reply. Raises MisuseError or ConfigError."""
        if not payload:
            raise MisuseError(f'auth callout violation: "no reason supplied" on account {service.account!r}')
        is_sealed = bool(service.xkey) and not payload.startswith(TOKEN_START)
        if is_sealed:
            payload = self._curve_key.open(payload, service.xkey)
        answer = decode(payload.decode("utf-8", "replace"))
        if not isinstance(answer, GenericClaims) or answer.nats.get("type") != "authorization_response":
            raise MisuseError("not an authorization response claim")
        if not is_public(answer.issuer, Prefix.ACCOUNT):
            raise MisuseError("the authorization response is not signed by an account")
        if answer.subject != expected:
            raise MisuseError("auth callout violation: auth callout response is not for expected user")
        if answer.audience != self._context.server_id:
            raise MisuseError("auth callout violation: auth callout response is not for server")
        if not is_sealed:  # encryption authenticates the service
            self._policy.check_signer(service, answer)
        if answer.nats.get("error"):
            raise MisuseError(f"auth callout service returned an error: {answer.nats['error']}")
        user = decode_user(str(answer.nats.get("jwt", "")))
        now_s = self._context.clock() // NS
        problem = next(iter((*user.problems(), *answer.problems())), "")
        problem = problem or user.time_problem(now_s) or answer.time_problem(now_s)
        if problem:
            raise MisuseError(f"Error validating user JWT: {problem}")
        if user.subject != expected:
            raise MisuseError(f"Expected authorized user of {expected!r} but got {user.subject!r}")
        return self._placed(service, user)

    def _placed(self, service: CalloutService, user: UserClaims) -> Identity:
        placement = self._policy.placement(service, user)
        if connection_types_of(placement.limits) is None:
            raise MisuseError("authorized user using invalid connection type")
        expires_ns = user.expires * NS
        if placement.limits.times:
            ends_ns = self._context.clock() + time_left_ns(placement.limits, self._context.clock())
            expires_ns = min(expires_ns or ends_ns, ends_ns)
        permissions = permissions_of(placement.limits)
        identity = Identity(
            account=placement.account,
            user=user.name or user.subject,
            permissions=placement.default_permissions if permissions is None else permissions,
            issuer_key=placement.account,
            expires_ns=expires_ns,
            proxy_required=placement.limits.proxy_required,
        )
        return self.let_in(identity)


def _certificates(session: Session | LeafSession) -> dict[str, list[str]]:
    der = session.connection.certificate()
    if not der:
        return {}
    import ssl

    return {"certs": [ssl.DER_cert_to_PEM_cert(der)]}


def _without_empty(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if value not in ("", 0)}
