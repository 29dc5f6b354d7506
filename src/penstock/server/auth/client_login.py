"""The login of one client: from the credentials of CONNECT to an identity, within a time limit.

A check against the options is immediate, or runs in a thread if it takes a password hash. An auth callout may
follow. While either is pending the client's input is paused, so that nothing it sends overtakes its login.

A reload may change the users during a check: then it is repeated with the new ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from penstock import faults
from penstock.net.reasons import CloseReason
from penstock.server.auth.client_identity import credentials_of
from penstock.server.auth.passwords import PasswordCheck

if TYPE_CHECKING:
    from penstock.server.auth.authenticator import Authenticator, Identity
    from penstock.server.auth.logins import Logins
    from penstock.server.connect_message import ConnectMessage
    from penstock.server.links.leaf_session import LeafSession
    from penstock.server.session import Session

HASH_WAIT_S = 30.0
"""How long a login may wait for its password hash. Replaces the authentication timeout, which limits the
client."""

Decide = Callable[["Identity | None"], None]


class ClientLogin:
    """Checks the credentials of one session.

    Args:
        session: the client or leaf node; this is its child.
        logins: how clients log in now.
    """

    __slots__ = ("_logins", "_session", "_timer", "is_pending")

    def __init__(self, session: Session | LeafSession, logins: Logins) -> None:
        self._session = session
        self._logins = logins
        self._timer: asyncio.TimerHandle | None = None
        self.is_pending = False  # a service or thread has not answered yet; input is paused

    @property
    def authenticator(self) -> Authenticator:
        """The authenticator for this client."""
        return self._logins.authenticator_of(self._session.connection.kind)

    def limit(self, seconds: float) -> None:
        """Sets the time limit, in place of an earlier one."""
        self.end()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, faults.contain, self._on_timeout, self._session.fail)

    def end(self) -> None:
        """Removes the time limit: the client is authenticated, or gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def check(self, options: ConnectMessage, then: Decide) -> None:
        """Checks credentials against the options in effect, and passes the identity on."""
        session = self._session
        credentials, authenticator = credentials_of(session, options), self.authenticator
        if not authenticator.is_slow(credentials):
            then(authenticator.check(credentials))
            return

        def decide(identity: Identity | None) -> None:
            if authenticator is self.authenticator:
                then(identity)
            else:
                self.check(options, then)  # a reload changed the users meanwhile

        if self._timer is not None:
            self.limit(HASH_WAIT_S)
        user = credentials.user if authenticator.has_user(credentials.user) else ""
        check = partial(authenticator.check, credentials)
        job = PasswordCheck(check, self._pause(decide), self._is_connected, session.fail)
        self._logins.passwords.run(job, host=session.connection.peer[0], user=user)

    def check_with_service(self, options: ConnectMessage, then: Decide) -> None:
        """Checks credentials like `check`, and then with the auth callout if it is asked for this client."""
        self.check(options, lambda identity: self._ask(options, identity, then))

    def _ask(self, options: ConnectMessage, identity: Identity | None, then: Decide) -> None:
        callout = self._logins.callout
        if callout is None:
            then(identity)
            return
        service = callout.service(credentials_of(self._session, options), identity)
        if service is None:
            then(self.let_in(identity))
            return
        self.end()  # the auth callout has its own time limit
        callout.ask(service, self._session, options, self._pause(then))

    def let_in(self, identity: Identity | None) -> Identity | None:
        """The identity with the restrictions of the auth callout, if there is one."""
        callout = self._logins.callout
        return callout.let_in(identity) if callout is not None and identity is not None else identity

    def _is_connected(self) -> bool:
        """Whether the client, whose input is paused, has not disconnected."""
        session = self._session
        if session.connection.has_left():
            session.close(CloseReason.CLIENT_CLOSED)
        return session.connection.close_reason is None

    def _pause(self, decide: Decide) -> Decide:
        """Pauses input until the returned callback is called; it passes on the identity and resumes."""
        session, connection = self._session, self._session.connection
        self.is_pending = True
        connection.pause_input()

        def decided(identity: Identity | None) -> None:
            self.is_pending = False
            if connection.close_reason is None:
                faults.contain(decide, session.fail, identity)
            if not self.is_pending and connection.close_reason is None:
                connection.resume_input()

        return decided

    def _on_timeout(self) -> None:
        session = self._session
        self._timer = None
        session.context.log.error(f"{session.name} - authentication error")
        session.refuse("Authentication Timeout", CloseReason.AUTHENTICATION_TIMEOUT)
