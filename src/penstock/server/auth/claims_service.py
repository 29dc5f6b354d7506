"""Requests of the system account that manage account JWTs, as the official server's resolver.


    $SYS.REQ.CLAIMS.UPDATE                   stores a token; the token names the account
    $SYS.REQ.ACCOUNT.<account>.CLAIMS.UPDATE the same, also $SYS.ACCOUNT.<account>.CLAIMS.UPDATE
    $SYS.REQ.ACCOUNT.<account>.CLAIMS.LOOKUP replies with the token, or an empty message
    $SYS.REQ.CLAIMS.LIST                     replies with the names of all accounts
    $SYS.REQ.CLAIMS.PACK                     replies with all tokens, one message each, then an empty one;
    only
                                             the empty one if the body equals the resolver's hash
    $SYS.REQ.CLAIMS.DELETE                   deletes accounts, listed in a token self-signed by the operator

A memory resolver accepts new tokens for known accounts until the server stops, and no other request. A cache
accepts tokens of known accounts. A full directory accepts all tokens; only it supports lookup and pack.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import ConfigError, MisuseError
from penstock.kernels.wire.sinks import Sink
from penstock.protocol.claims import AccountClaims, GenericClaims
from penstock.protocol.jwt import decode, decode_account
from penstock.protocol.nkeys import Prefix, is_public
from penstock.server.auth.operators import Operators, Untrusted

if TYPE_CHECKING:
    from penstock.routing.account import Account
    from penstock.server.server_context import ServerContext

_UPDATED = {"memory": "jwt updated", "full": "jwt updated", "cache": "jwt updated cache"}


class ClaimsService:
    """Serves these requests in the system account of a server with operators.

    Args:
        context: options with a system account.
        operators: has the resolver.
        describe: returns the `server` object of replies.
    """

    def __init__(
        self, context: ServerContext, operators: Operators, describe: Callable[[], dict[str, Any]]
    ) -> None:
        self._context = context
        self._operators = operators
        self._describe = describe
        assert context.options.resolver is not None
        self._options = context.options.resolver
        self._kind = self._options.type

    def serve(self, account: Account) -> None:
        """Subscribes in the system account."""

        def on(subject: str, answer: Callable[[str, bytes, bytes], None]) -> None:
            def serve(name: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None) -> None:
                answer(name.decode("utf-8", "replace"), reply, payload)

            account.subscribe_service(subject.encode(), serve)

        self._publish = account.publish
        for subject in ("$SYS.REQ.ACCOUNT.*.CLAIMS.UPDATE", "$SYS.ACCOUNT.*.CLAIMS.UPDATE"):
            on(subject, self._update_named)
        if self._kind == "memory":
            return
        on("$SYS.REQ.CLAIMS.UPDATE", self._update)
        on("$SYS.REQ.CLAIMS.LIST", self._list)
        on("$SYS.REQ.CLAIMS.DELETE", self._delete)
        if self._kind == "full":
            on("$SYS.REQ.ACCOUNT.*.CLAIMS.LOOKUP", self._lookup)
            on("$SYS.REQ.CLAIMS.PACK", self._pack)

    # -- updates

    def _update_named(self, subject: str, reply: bytes, payload: bytes) -> None:
        tokens = subject.split(".")
        self._take(payload, reply, tokens[3] if tokens[1] == "REQ" else tokens[2])

    def _update(self, subject: str, reply: bytes, payload: bytes) -> None:
        self._take(payload, reply, "")

    def _take(self, payload: bytes, reply: bytes, named: str) -> None:
        """Stores a token; named: account in the subject, "" = none."""
        cache = " cache" if self._kind == "cache" else ""
        try:
            claims = _decoded(payload)
        except MisuseError as error:
            who = named if named and self._kind != "full" else "n/a"
            self._refuse(reply, who, f"jwt update{cache} resulted in error", error)
            return
        try:
            message = self._stored(claims, payload.decode(), named)
        except _Invalid as error:
            what = "jwt update cache validation failed" if cache else "jwt validation failed"
            self._refuse(reply, claims.subject, what, error)
        except (MisuseError, ConfigError, Untrusted, OSError) as error:
            self._refuse(reply, named or claims.subject, f"jwt update{cache} resulted in error", error)
        else:
            self._confirm(reply, message, claims.subject)

    def _stored(self, claims: AccountClaims, token: str, named: str) -> str:
        """Stores a token and updates a known account. Returns the reply text."""
        operators, account = self._operators, claims.subject
        if self._kind == "full":
            _check_sound(claims)
        if named and account != named:
            raise MisuseError("subject does not match jwt content")
        if self._kind != "memory" and operators.is_strict_about(claims.issuer):
            raise MisuseError("operator requires issuer to be a signing key")
        if self._kind != "full" and account not in operators.known:
            return "jwt update cache skipped" if self._kind == "cache" else "jwt update skipped"
        if self._kind == "cache":
            _check_sound(claims)
        if self._kind == "memory":
            operators.update(account, token)
            return _UPDATED[self._kind]
        operators.resolver.store(account, token, self._context.clock())
        operators.token_stored(account)
        if account in operators.known:
            try:
                operators.update(account, token)
            except (Untrusted, ConfigError, MisuseError) as error:
                # The stored token stays, as in the official server; the account keeps its previous state.
                self._context.log.error(
                    f'DirResolver - Update for account "{account}" resulted in error {error}'
                )
        return _UPDATED[self._kind]

    # -- other requests

    def _lookup(self, subject: str, reply: bytes, payload: bytes) -> None:
        if not reply:
            return
        try:
            token = self._operators.resolver.fetch(subject.split(".")[3])
        except (OSError, UnicodeDecodeError) as error:
            self._context.log.error(f"DirResolver - Error looking up account {subject}: {error}")
            return
        self._publish(reply, (token or "").encode())

    def _list(self, subject: str, reply: bytes, payload: bytes) -> None:
        if reply:
            self._expire()
            names = [account for account, _ in self._operators.resolver.pairs()]
            self._answer(reply, {"data": names})

    def _pack(self, subject: str, reply: bytes, payload: bytes) -> None:
        if not reply:
            return
        self._expire()
        resolver = self._operators.resolver
        if payload != resolver.hash():
            for account, token in resolver.pairs():
                self._publish(reply, f"{account}|{token}".encode())
        self._publish(reply, b"")

    def _delete(self, subject: str, reply: bytes, payload: bytes) -> None:
        who = ""
        try:
            claims = decode(payload.decode("utf-8", "replace"))
            who = claims.subject
            names = self._deletable(claims)
        except MisuseError as error:
            self._refuse(reply, "", f"delete accounts request by {who} failed", error)
            return
        failed = []
        for name in names:
            try:
                self._operators.resolver.delete(name)
            except OSError as error:
                failed.append(str(error))
            else:
                self._operators.remove(name)
        if failed:
            text = f"deleted {len(names) - len(failed)} accounts, failed for {len(failed)}"
            self._refuse(reply, "", text, MisuseError("\n".join(failed)))
        else:
            self._confirm(reply, f"deleted {len(names)} accounts", "")

    def _deletable(self, claims: Any) -> list[str]:
        """The accounts that a delete request may remove. Raises MisuseError."""
        if not (self._options.allow_delete or self._kind == "cache"):
            raise MisuseError("delete must be enabled in server config")
        if claims.subject != claims.issuer:
            raise MisuseError("not self signed")
        if claims.issuer not in self._operators.root_keys:
            raise MisuseError("not trusted")
        names = claims.nats.get("accounts") if isinstance(claims, GenericClaims) else None
        if not isinstance(names, list):
            raise MisuseError("malformed request")
        for name in names:
            if not isinstance(name, str) or not is_public(name, Prefix.ACCOUNT):
                raise MisuseError("malformed request")
            if name == self._context.options.system_account:
                raise MisuseError("not allowed to delete system account")
        return names

    def _expire(self) -> None:
        self._operators.resolver.expire(self._context.clock())

    # -- replies

    def _confirm(self, reply: bytes, message: str, account: str) -> None:
        self._context.log.debug(f"{message} - {account}" if account else message)
        data = {"account": account, "code": 200, "message": message}
        self._answer(reply, {"data": {name: value for name, value in data.items() if value != ""}})

    def _refuse(self, reply: bytes, account: str, message: str, error: Exception) -> None:
        self._context.log.error(" - ".join(part for part in (message, account, str(error)) if part))
        fields = {"account": account, "code": 500, "description": f"{message} - {error}"}
        self._answer(reply, {"error": {name: value for name, value in fields.items() if value != ""}})

    def _answer(self, reply: bytes, page: dict[str, Any]) -> None:
        if reply:
            self._publish(reply, msgspec.json.encode({"server": self._describe(), **page}))


class _Invalid(MisuseError):
    """Invalid claims."""


def _check_sound(claims: AccountClaims) -> None:
    problems = claims.problems()
    if problems:
        raise _Invalid(f"validation errors: [{' '.join(problems)}]")


def _decoded(payload: bytes) -> AccountClaims:
    if not payload:
        raise MisuseError("request body is empty")
    return decode_account(payload.decode("utf-8", "replace"))
