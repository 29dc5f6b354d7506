"""Who gets into the web page, and what he may ask: login, sessions, CSRF, headers, anonymous users."""

from __future__ import annotations

import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from penstock.protocol.jwt import format_credentials
from penstock.server.config.server_options import TlsOptions, User, WebOptions
from penstock.testing import server as embedded
from penstock.web.session_table import USER_SESSIONS_MAX
from tests.support.certificates import make_certificates
from tests.support.keys import SYSTEM, account_token, key, now_s, operator_token, user_token
from tests.support.processes import Served
from tests.support.web_visits import WebVisit, web_server
from tests.support.wire import wait_until

pytestmark = pytest.mark.feature("monitoring.web")

VIEWS = ("overview", "streams", "connections", "accounts", "cluster", "dead-letters", "schedules", "spark")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, WebVisit]]:
    with web_server(tmp_path_factory.mktemp("web")) as found:
        yield found


@pytest.fixture
def visit(site: tuple[Served, WebVisit]) -> WebVisit:
    return WebVisit(site[1].port, site[1].path)


@pytest.mark.parametrize(
    ("user", "password", "token"),
    [("ann", "wrong", ""), ("nobody", "secret", ""), ("", "", "secret"), ("ann", "", "")],
)
def test_wrong_credentials_are_refused(visit: WebVisit, user: str, password: str, token: str) -> None:
    answer = visit.log_in(user, password, token=token)
    assert (answer.status, answer.json) == (401, {"error": "the server refused these credentials"})
    assert "set-cookie" not in answer.headers


def test_a_login_without_credentials_is_refused_where_the_server_wants_them(visit: WebVisit) -> None:
    answer = visit.log_in("", "")
    assert answer.status in (401, 403)
    assert visit.ask("api/session").json == {"user": None, "anonymous": False, "refused": ""}


def test_a_login_gives_a_cookie_that_no_script_and_no_other_site_can_use(visit: WebVisit) -> None:
    answer = visit.log_in()
    assert answer.status == 200
    assert (answer.json["user"], answer.json["account"], answer.json["writes"]) == ("ann", "A", True)
    flags = {part.strip().lower() for part in answer.headers["set-cookie"].split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/ui/"} <= flags
    assert len(visit.cookie.partition("=")[2]) >= 43  # 256 bits
    assert visit.ask("api/session").json["csrf"] == visit.csrf


@pytest.mark.parametrize("path", [*(f"api/view/{name}" for name in VIEWS), "api/live/overview"])
def test_no_view_is_shown_without_a_session(visit: WebVisit, path: str) -> None:
    assert visit.ask(path).status == 401
    visit.cookie = "penstock_session=" + "A" * 43
    assert visit.ask(path).status == 401


@pytest.mark.parametrize("name", VIEWS)
def test_each_view_answers_a_user(visit: WebVisit, name: str) -> None:
    visit.log_in()
    answer = visit.ask(f"api/view/{name}")
    assert answer.status == 200, answer
    assert answer.headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in answer.headers


def test_a_logout_ends_the_session_and_its_connection(visit: WebVisit) -> None:
    def pages() -> int:
        found = visit.monitoring("connz?auth=1")["connections"]
        return sum(one.get("authorized_user") == "bob" for one in found)

    visit.log_in("bob")
    assert pages() == 1
    assert visit.ask("api/logout", "POST", {}).status == 200
    assert visit.ask("api/view/overview").status == 401
    wait_until(lambda: pages() == 0, "the connection is closed")


def test_a_new_login_of_the_same_browser_ends_its_old_session(visit: WebVisit) -> None:
    visit.log_in()
    before = visit.cookie
    visit.log_in("bob")
    assert visit.cookie != before
    visit.cookie = before
    assert visit.ask("api/view/overview").status == 401


def test_a_user_has_a_bounded_number_of_sessions(site: tuple[Served, WebVisit]) -> None:
    visits = [WebVisit(site[1].port) for _ in range(USER_SESSIONS_MAX + 1)]
    for one in visits:
        assert one.log_in("sys").status == 200
    assert [one.ask("api/view/overview").status for one in visits] == [401] + [200] * USER_SESSIONS_MAX


@pytest.mark.parametrize(
    "headers",
    [
        {"X_CSRF_Token": ""},
        {"X_CSRF_Token": "A" * 43},
        {"origin": "http://evil.example"},
        {"Sec_Fetch_Site": "cross-site"},
        {"origin": "null"},
    ],
)
def test_a_request_that_another_site_sends_changes_nothing(visit: WebVisit, headers: dict[str, str]) -> None:
    visit.log_in()
    before = visit.view("overview")["in_msgs"]
    answer = visit.act("publish", {"subject": "plain", "stored": False}, **headers)
    assert answer.status == 403
    assert visit.ask("api/logout", "POST", {}, **headers).status == 403
    assert visit.view("overview")["in_msgs"] == before


def test_another_site_can_neither_log_in_nor_read(visit: WebVisit) -> None:
    body = {"user": "ann", "password": "secret"}
    assert visit.ask("api/login", "POST", body, origin="http://evil.example").status == 403
    assert visit.ask("api/login", "POST", body, Content_Type="text/plain").status == 400
    visit.log_in()
    assert visit.ask("api/view/overview", Sec_Fetch_Site="cross-site").status == 403


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"user":1}', b"[" * 5000, b'{"user":"' + b"x" * 20000 + b'"}', b"\xff\xfe"]
)
def test_a_broken_login_is_refused(visit: WebVisit, body: bytes) -> None:
    assert visit.ask("api/login", "POST", body).status == 400


def test_every_answer_forbids_foreign_scripts_frames_and_guesses(visit: WebVisit) -> None:
    visit.log_in()
    for path in ("", "app.js", "style.css", "icon.svg", "nothing.js", "api/session", "api/view/streams"):
        headers = visit.ask(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert headers["x-content-type-options"] == "nosniff"


def test_files_outside_of_the_page_are_not_served(visit: WebVisit) -> None:
    for path in ("../varz", "..%2f..%2fweb_app.py", "%2e%2e/web_app.py", "web_app.py", "__init__.py"):
        assert visit.ask(path).status == 404


def test_the_page_is_found_without_its_slash_and_the_json_pages_stay(visit: WebVisit) -> None:
    answer = WebVisit(visit.port, "/ui").ask("")
    assert (answer.status, answer.headers["location"]) == (307, "/ui/")
    assert visit.monitoring("varz")["version"]


def test_a_file_that_the_browser_has_is_not_sent_again(visit: WebVisit) -> None:
    tag = visit.ask("app.js").headers["etag"]
    assert visit.ask("app.js", If_None_Match=tag).status == 304
    assert visit.ask("app.js", If_None_Match='"other"').status == 200


def test_a_live_view_sends_what_the_view_shows(visit: WebVisit) -> None:
    visit.log_in()
    name, data = visit.first_event("overview")
    assert name == "slice"
    assert data["server_id"] == visit.monitoring("varz")["server_id"]


def test_a_problem_of_a_live_view_is_an_event(visit: WebVisit) -> None:
    visit.log_in()
    assert visit.first_event("stream?stream=NONE") == ("problem", {"error": "stream not found"})


def test_a_reload_that_removes_the_user_ends_his_session(tmp_path: Path) -> None:
    conf = 'http: "127.0.0.1:-1"\nweb: true\nauthorization { users: [{user: u, password: p}%s] }\n'
    with web_server(tmp_path, conf=conf.replace("%s", ", {user: v, password: p}")) as (server, visit):
        assert visit.log_in("v", "p").status == 200
        (tmp_path / "nats.conf").write_text(conf.replace("%s", ""))
        server.process.send_signal(1)
        server.wait_for("Reloaded server configuration")
        wait_until(lambda: visit.ask("api/view/overview").status == 401, "the session has ended")


def test_users_log_in_with_nkeys(tmp_path: Path) -> None:
    conf = f"""http: "127.0.0.1:-1"\nweb: true
        authorization {{ users: [{{nkey: {key("user", "joe").public}}}] }}"""
    with web_server(tmp_path, conf=conf) as (_, visit):
        wrong = visit.log_in("", "", credentials=key("user", "eve").seed)
        assert (wrong.status, wrong.json) == (401, {"error": "the server refused these credentials"})
        for text in ("SUNOSEED", "-----BEGIN", "S" * 60, "{}"):
            refused = visit.log_in("", "", credentials=text)
            assert (refused.status, "can not be used" in refused.json["error"]) == (401, True)
            assert text not in refused.json["error"]
        both = visit.log_in("joe", "", credentials=key("user", "joe").seed)
        assert (both.status, "give one of these" in both.json["error"]) == (400, True)
        visit.host = "penstock.example"
        remote = visit.log_in("", "", credentials=key("user", "joe").seed)
        assert (remote.status, "https only" in remote.json["error"]) == (403, True)
        visit.host = "127.0.0.1"
        assert visit.log_in("", "", credentials=f"\n{key('user', 'joe').seed}\n").status == 200
        assert visit.view("overview")


def test_users_log_in_with_credentials_and_their_expiry_ends_the_session(tmp_path: Path) -> None:
    token = account_token("APP")
    conf = f"""http: "127.0.0.1:-1"\nweb: true\noperator: {operator_token()}
        resolver: MEMORY\nresolver_preload: {{
        {key("account", "APP").public}: {token}
        {SYSTEM.public}: {account_token("SYS")} }}"""

    def credentials(**head: int) -> str:
        return format_credentials(user_token("APP", "joe", head=head), key("user", "joe").seed)

    with web_server(tmp_path, conf=conf) as (_, visit):
        expired = visit.log_in("", "", credentials=credentials(expires=now_s() - 60))
        assert (expired.status, "has not expired" in expired.json["error"]) == (401, True)
        assert visit.log_in("", "", credentials=credentials()).status == 200
        assert visit.view("overview")
        short = WebVisit(visit.port)
        assert short.log_in("", "", credentials=credentials(expires=now_s() + 2)).status == 200
        wait_until(lambda: short.ask("api/view/overview").status == 401, "the session has ended")
        assert visit.view("overview")


def test_the_connection_of_an_expired_session_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.web.session_table.IDLE_S", 0.3)
    monkeypatch.setattr("penstock.web.session_expiry.CHECK_S", 0.1)
    with embedded(http_port=-1, web=WebOptions()) as running:
        visit = WebVisit(running.server.monitor.port)  # type: ignore[union-attr]

        def connections() -> int:
            return int(visit.monitoring("connz")["num_connections"])

        assert visit.log_in("", "").status == 200
        assert connections() == 1
        wait_until(lambda: connections() == 0, "the connection is closed")
        assert visit.ask("api/view/overview").status == 401


def test_without_users_the_page_is_for_this_machine_by_its_address() -> None:
    with embedded(http_port=-1, web=WebOptions()) as running:
        port = running.server.monitor.port  # type: ignore[union-attr]
        visit = WebVisit(port)
        assert visit.ask("api/session").json["anonymous"] is True
        assert visit.log_in("", "").status == 200
        assert visit.view("overview")["account"] == "$G"
        stranger = WebVisit(port, host="evil.example")
        assert "no users" in stranger.ask("api/session").json["refused"]
        assert stranger.log_in("", "").status == 403
        assert stranger.log_in("any", "thing").status == 403  # which the server would accept


def test_allow_anonymous_shows_the_page_by_any_name() -> None:
    with embedded(http_port=-1, web=WebOptions(allow_anonymous=True)) as running:
        visit = WebVisit(running.server.monitor.port, host="nats.example")  # type: ignore[union-attr]
        assert visit.log_in("", "").status == 200


def test_a_peer_on_another_machine_is_not_anonymous_behind_a_local_proxy() -> None:
    with embedded(http_port=-1, web=WebOptions()) as running:
        visit = WebVisit(running.server.monitor.port)  # type: ignore[union-attr]
        answer = visit.ask("api/login", "POST", {}, X_Forwarded_For="203.0.113.7")
        assert answer.status == 403


def test_no_auth_user_is_for_this_machine_and_others_log_in() -> None:
    users = (User(name="guest", password="g"), User(name="ann", password="secret"))
    with embedded(http_port=-1, web=WebOptions(), users=users, no_auth_user="guest") as running:
        port = running.server.monitor.port  # type: ignore[union-attr]
        guest = WebVisit(port)
        assert guest.log_in("", "").json["user"] == "guest"
        stranger = WebVisit(port, host="nats.example")
        assert stranger.log_in("", "").status == 403
        assert stranger.log_in().json["user"] == "ann"


def test_without_the_option_there_is_no_page() -> None:
    with embedded(http_port=-1) as running:
        port = running.server.monitor.port  # type: ignore[union-attr]
        assert [WebVisit(port).ask(path).status for path in ("", "api/session", "app.js")] == [404] * 3


def test_a_login_passes_where_clients_need_tls(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    tls = TlsOptions(cert_file=str(made.cert), key_file=str(made.key))
    with embedded(http_port=-1, web=WebOptions(), tls=tls, user="u", password="p") as running:
        visit = WebVisit(running.server.monitor.port)  # type: ignore[union-attr]
        assert visit.log_in("u", "p").status == 200
        assert visit.view("overview")["connections"] == 1


def test_a_live_view_does_not_keep_the_server_from_stopping() -> None:
    with embedded(http_port=-1, web=WebOptions()) as running:
        visit = WebVisit(running.server.monitor.port)  # type: ignore[union-attr]
        visit.log_in("", "")
        connection = HTTPConnection("127.0.0.1", visit.port, timeout=20)
        connection.request("GET", "/ui/api/live/overview", headers={"Cookie": visit.cookie})
        connection.getresponse().readline()
        began = time.monotonic()
    assert time.monotonic() - began < 4
    connection.close()
