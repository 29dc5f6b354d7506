"""Routes, requests and answers of the web page.

Theory of operation: a route is a row of a table. Requests to `api/` pass three gates before a view or action
runs: they come from the page itself, they have a session whose connection the server still accepts, and
changing ones carry its CSRF token and are allowed by `allow_writes`. What a view raises becomes a status and
a JSON object `{"error": ...}`.

An anonymous session needs no credentials. There is one only where the server takes clients without any, and
then only for peers on this machine that asked for it by address (`allow_anonymous` lifts both).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from penstock import faults
from penstock.errors import (
    AuthorizationError,
    ClientError,
    CredentialsError,
    MisuseError,
    NoServersError,
    PenstockError,
)
from penstock.web import problems, request_checks
from penstock.web.event_streams import EVERY_MIN_S, EVERY_S, EventStreams
from penstock.web.session_expiry import SessionExpiry
from penstock.web.session_table import SessionTable, TooManySessionsError, WebSession
from penstock.web.static_files import SECURITY_HEADERS, load_files
from penstock.web.views.view_table import ACTIONS, VIEWS
from penstock.web.visitor import Visitor, WebLogin

if TYPE_CHECKING:
    from penstock.web.web_ports import Slice, WebPorts

MakeSlice = Callable[[], "Awaitable[Slice]"]

COOKIE = "penstock_session"
LOGIN_BYTES_MAX = 16 * 1024
ACTION_BYTES_MAX = 4 * 1024 * 1024
LOGINS_AT_ONCE = 8
VIEW_S = 20.0
"""Time limit of one slice: the port gives an answer 30 s."""


class WebApp:
    """The web page of one server. Create it in the loop that serves it.

    Args:
        ports: the server.
        prefix: path of the page, such as "/ui".
    """

    def __init__(self, ports: WebPorts, prefix: str) -> None:
        self._ports = ports
        self._prefix = prefix
        self._files = load_files()
        self._sessions: SessionTable[Visitor] = SessionTable()
        self._closing = asyncio.Event()
        self._streams = EventStreams(self._closing)
        self._logins = 0
        self._leaving: set[asyncio.Task[None]] = set()
        self._expiry = SessionExpiry(asyncio.get_running_loop().call_later, self._expire)

    def routes(self) -> list[Route]:
        prefix = self._prefix
        return [
            Route(prefix, self._to_page),
            Route(f"{prefix}/", self._file),
            Route(f"{prefix}/api/session", self._about),
            Route(f"{prefix}/api/login", self._log_in, methods=["POST"]),
            Route(f"{prefix}/api/logout", self._log_out, methods=["POST"]),
            Route(f"{prefix}/api/view/{{name}}", self._view),
            Route(f"{prefix}/api/live/{{name}}", self._live),
            Route(f"{prefix}/api/do/{{name}}", self._act, methods=["POST"]),
            Route(f"{prefix}/{{name}}", self._file),
        ]

    async def close(self) -> None:
        """Ends live views and sessions."""
        self._closing.set()
        self._expiry.stop()
        for visitor in self._sessions.clear():
            self._say_goodbye(visitor)
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=2.0)

    # -- files

    async def _to_page(self, request: Request) -> Response:
        return RedirectResponse(f"{self._prefix}/", headers=SECURITY_HEADERS)

    async def _file(self, request: Request) -> Response:
        found = self._files.get(request.path_params.get("name", "index.html"))
        if found is None:
            return Response("404 page not found\n", 404, SECURITY_HEADERS, "text/plain")
        headers = {**SECURITY_HEADERS, "ETag": found.tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == found.tag:
            return Response(status_code=304, headers=headers)
        return Response(found.content, 200, headers, found.kind)

    # -- sessions

    async def _about(self, request: Request) -> Response:
        """Who is logged in, and whether a login without credentials would do."""
        if not self._is_own(request):
            return _not_own()
        session = self._session(request)
        return _json(self._session_slice(session) if session is not None else self._login_slice(request))

    def _session_slice(self, session: WebSession[Visitor]) -> Slice:
        visitor = session.visitor
        return {
            "user": visitor.user,
            "account": visitor.account,
            "csrf": session.csrf,
            "writes": self._ports.policy.writes,
            "server": self._ports.server_name,
            "version": self._ports.version,
        }

    def _login_slice(self, request: Request) -> Slice:
        """What the login form needs to know. It names neither the server nor a user."""
        policy = self._ports.login_policy()
        may_be_anonymous = not policy.required and self._takes_anonymous(request)
        refused = not policy.configured and not may_be_anonymous
        return {"user": None, "anonymous": may_be_anonymous, "refused": _NO_USERS if refused else ""}

    def _takes_anonymous(self, request: Request) -> bool:
        if self._ports.policy.anonymous:
            return True
        peer, host = _peer(request)[0], request.headers.get("host", "")
        return request_checks.is_this_machine(peer) and request_checks.is_plain_host(host)

    async def _log_in(self, request: Request) -> Response:
        if not self._is_own(request):
            return _not_own()
        try:
            login = await _body(request, WebLogin, LOGIN_BYTES_MAX)
            policy = self._ports.login_policy()
            is_anonymous = login.is_anonymous or not policy.configured
            if login.credentials and not _is_private(request):
                return _problem(403, _NOT_PRIVATE)
            if is_anonymous and not self._takes_anonymous(request):
                return _problem(403, _NO_USERS if not policy.configured else _NO_CREDENTIALS)
            if self._logins >= LOGINS_AT_ONCE:
                return _problem(503, "too many logins at once; try again in some seconds")
            self._logins += 1
            try:
                return await self._open_session(request, login)
            finally:
                self._logins -= 1
        except MisuseError as error:
            return _problem(400, str(error))
        except CredentialsError:  # its text may quote a part of them
            return _problem(401, _UNUSABLE)
        except AuthorizationError:
            return _problem(401, "the server refused these credentials")
        except TooManySessionsError as error:
            return _problem(503, str(error))
        except (NoServersError, ClientError, OSError) as error:
            return _problem(503, f"the server refused the connection: {error}")
        except Exception as error:  # noqa: BLE001 -- like faults.contain(), for a coroutine
            return _fault("login", error)

    async def _open_session(self, request: Request, login: WebLogin) -> Response:
        self._expire()
        visitor = await Visitor.log_in(self._ports, login, _peer(request))
        token = secrets.token_urlsafe(32)
        try:
            owner = f"{visitor.account}/{visitor.user}"
            ended_ones = self._sessions.add(token, secrets.token_urlsafe(32), owner, visitor, _now_s())
        except TooManySessionsError:
            await visitor.leave()
            raise
        for ended in [*ended_ones, *self._sessions.end(request.cookies.get(COOKIE, ""))]:
            self._say_goodbye(ended)
        self._expiry.watch()
        session = self._sessions.find(token, _now_s())
        assert session is not None
        answer = _json(self._session_slice(session))
        answer.set_cookie(
            COOKIE,
            token,
            path=f"{self._prefix}/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return answer

    async def _log_out(self, request: Request) -> Response:
        session = self._session(request)
        if session is None or not self._is_own(request) or not _has_token(request, session):
            return _not_own()
        for ended in self._sessions.end(request.cookies.get(COOKIE, "")):
            self._say_goodbye(ended)
        answer = _json({})
        answer.delete_cookie(COOKIE, path=f"{self._prefix}/", httponly=True, samesite="strict")
        return answer

    def _session(self, request: Request) -> WebSession[Visitor] | None:
        """The session of a request, unless the server has closed its connection."""
        token = request.cookies.get(COOKIE, "")
        session = self._sessions.find(token, _now_s()) if token else None
        if session is not None and not session.visitor.is_here:
            self._sessions.end(token)
            return None
        return session

    def _expire(self) -> bool:
        """End sessions that have expired, or whose connection the server has closed. Whether any is left."""
        ended = self._sessions.expire(_now_s())
        for visitor in [*ended, *self._sessions.leave_out(lambda visitor: not visitor.is_here)]:
            self._say_goodbye(visitor)
        return len(self._sessions) > 0

    def _say_goodbye(self, visitor: Visitor) -> None:
        task = asyncio.get_running_loop().create_task(visitor.leave())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    # -- views and actions

    async def _view(self, request: Request) -> Response:
        asked = self._asked_view(request)
        if isinstance(asked, Response):
            return asked
        status, data = await _contained(asked[1])
        return _json(data, status)

    def _asked_view(self, request: Request) -> tuple[WebSession[Visitor], MakeSlice] | Response:
        """The session of a request and what makes the slice that it asks for, or the refusal."""
        session, refusal = self._enter(request)
        if session is None:
            return refusal
        view = VIEWS.get(request.path_params["name"])
        if view is None:
            return _problem(404, "this page has no such view")
        visitor, query = session.visitor, dict(request.query_params)
        return session, lambda: view(visitor, query)

    async def _live(self, request: Request) -> Response:
        asked = self._asked_view(request)
        if isinstance(asked, Response):
            return asked
        session, make = asked

        async def make_event() -> tuple[str, Slice]:
            if self._session(request) is not session:
                return "gone", {"error": "the session has ended"}
            status, data = await _contained(make)
            return ("slice" if status == 200 else "problem"), data

        try:
            every_s = max(EVERY_MIN_S, min(60.0, float(request.query_params.get("every", EVERY_S))))
        except ValueError:
            return _problem(400, "every is a number of seconds")
        headers = {**SECURITY_HEADERS, "Cache-Control": "no-store"}
        events = self._streams.events(session, make_event, every_s)
        return StreamingResponse(events, 200, headers, "text/event-stream")

    async def _act(self, request: Request) -> Response:
        session, refusal = self._enter(request)
        if session is None:
            return refusal
        if not _has_token(request, session):
            return _not_own()
        if not self._ports.policy.writes:
            return _problem(403, _READ_ONLY)
        action = ACTIONS.get(request.path_params["name"])
        if action is None:
            return _problem(404, "this page has no such action")
        visitor = session.visitor

        async def run() -> Slice:
            return await action.run(visitor, await _body(request, action.kind, ACTION_BYTES_MAX))

        status, data = await _contained(run)
        return _json(data, status)

    def _enter(self, request: Request) -> tuple[WebSession[Visitor] | None, Response]:
        """The session of a request to the API; None with the answer that refuses it."""
        if not self._is_own(request):
            return None, _not_own()
        return self._session(request), _problem(401, "log in first")

    def _is_own(self, request: Request) -> bool:
        return request_checks.is_same_origin(request.headers, request.url.scheme)


_NO_USERS = (
    "this server has no users, so it shows this page only to browsers on its own machine, by its address: "
    "add users, or set web { allow_anonymous: true }"
)
_NO_CREDENTIALS = "log in with a user and a password, with a token, or with credentials"
_NOT_PRIVATE = "credentials and seeds are taken over https only, or from a browser on the server's machine"
_UNUSABLE = (
    "these credentials can not be used: they are a user's credentials file that has not expired, or the seed "
    "of a user's nkey"
)
_READ_ONLY = "this page is read-only: web { allow_writes: true } in the configuration changes that"


async def _contained(make: Callable[[], Awaitable[Slice]]) -> tuple[int, Slice]:
    """What a view or action makes, with status 200, or the problem it ran into."""
    try:
        async with asyncio.timeout(VIEW_S):
            return 200, await make()
    except TimeoutError:
        return 504, {"error": f"this took more than {VIEW_S:g} s"}
    except PenstockError as error:
        return problems.status_of(error), {"error": problems.text_of(error)}
    except ClientDisconnect:
        return 400, {"error": "the request was not complete"}
    except Exception as error:  # noqa: BLE001 -- like faults.contain(), for a coroutine
        return 500, {"error": faults.describe(faults.note("web page", error))}


async def _body(request: Request, kind: type[Any], limit: int) -> Any:
    """The JSON body of a request. Raises MisuseError."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise MisuseError("the body must be application/json")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            raise MisuseError(f"the request has more than {limit:,} bytes")
    try:
        return msgspec.json.decode(bytes(body), type=kind)
    except (msgspec.ValidationError, msgspec.DecodeError, RecursionError) as error:
        raise MisuseError(f"the request can not be read: {error}") from error


def _has_token(request: Request, session: WebSession[Visitor]) -> bool:
    return session.proves(request.headers.get("x-csrf-token", ""))


def _is_private(request: Request) -> bool:
    """Whether a request crosses no network in plain text. A proxy on this machine is addressed by a name."""
    host = request.headers.get("host", "")
    is_local = request_checks.is_this_machine(_peer(request)[0]) and request_checks.is_plain_host(host)
    return request.url.scheme == "https" or is_local


def _peer(request: Request) -> tuple[str, int]:
    return (request.client.host, request.client.port) if request.client is not None else ("", 0)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _json(data: Slice, status: int = 200) -> Response:
    headers = {**SECURITY_HEADERS, "Cache-Control": "no-store"}
    return Response(msgspec.json.encode(data), status, headers, "application/json")


def _problem(status: int, text: str) -> Response:
    return _json({"error": text}, status)


def _not_own() -> Response:
    return _problem(403, "this request does not come from the page itself; reload the page")


def _fault(what: str, error: Exception) -> Response:
    return _problem(500, faults.describe(faults.note(f"web page, {what}", error)))
