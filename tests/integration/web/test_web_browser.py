"""The web page in Chromium: login, live numbers, browse and publish, dead letters, many streams, keyboard.

Every test also claims that no script failed, nothing broke the content security policy, and no request left
the server's own origin (`Tab.close`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock.sync
from tests.integration.web.test_web_views import HOSTILE, give_up, publish_orders
from tests.support.browsers import Tab, chromium
from tests.support.keys import key
from tests.support.web_visits import WebVisit, web_server
from tests.support.wire import wait_until

pytestmark = [pytest.mark.feature("monitoring.web"), pytest.mark.timeout(120)]

VIEWS = (
    "Overview", "Streams", "Messages", "Publish", "Dead letters", "Schedules", "Accounts", "Connections",
    "Cluster", "Spark queries",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def site(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, WebVisit]]:
    with web_server(tmp_path_factory.mktemp("web")) as (server, visit):
        with penstock.sync.connect(f"nats://ann:secret@127.0.0.1:{server.port}") as client:
            publish_orders(client)
            give_up(client, 4)
        visit.log_in()
        yield server.port, visit


@pytest.fixture
def client(site: tuple[int, WebVisit]) -> Iterator[penstock.sync.Client]:
    with penstock.sync.connect(f"nats://ann:secret@127.0.0.1:{site[0]}") as found:
        yield found


@pytest.fixture
def tab(browser: Any, site: tuple[int, WebVisit]) -> Iterator[Tab]:
    found = Tab(browser, f"http://127.0.0.1:{site[1].port}/ui/")
    yield found
    found.close()


def number(page: Any, name: str) -> int:
    """A figure as the page shows it; -1 before the first slice."""
    text = page.locator(f"#{name}").inner_text().replace(",", "")
    return int(text) if text.isdigit() else -1


def test_a_wrong_login_is_refused_and_a_right_one_granted(tab: Tab) -> None:
    page = tab.open()
    page.get_by_label("User").fill("ann")
    page.get_by_label("Password").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    assert "refused these credentials" in page.get_by_role("alert").inner_text()
    assert page.get_by_label("Password").input_value() == ""
    assert page.get_by_role("navigation").count() == 0
    page.get_by_label("Password").fill("secret")
    page.get_by_label("Password").press("Enter")
    page.get_by_role("heading", name="Overview", exact=True).wait_for()
    assert "ann · account A" in page.get_by_role("banner").inner_text()
    page.reload()
    page.get_by_role("heading", name="Overview", exact=True).wait_for()
    page.get_by_role("button", name="Log out").click()
    page.get_by_label("User").wait_for()


def test_live_numbers_are_those_of_the_api(
    tab: Tab, site: tuple[int, WebVisit], client: penstock.sync.Client
) -> None:
    page = tab.log_in()
    js = client.jetstream()
    js.publish("plain.live", b"x")
    wanted = site[1].monitoring("jsz")
    wait_until(lambda: number(page, "js_messages") == wanted["messages"], "the messages of /jsz", 10)
    assert number(page, "js_streams") == wanted["streams"]
    assert number(page, "connections") == site[1].monitoring("varz")["connections"]
    page.goto(f"{tab.url}#/stream?stream=ORDERS")
    info = js.stream("ORDERS").info()
    wait_until(lambda: number(page, "messages") == info.state.messages, "the messages of the stream", 10)
    row = page.locator("tr[data-key=billing]")
    pending = js.stream("ORDERS").consumer_info("billing").num_pending
    assert row.locator("td").nth(3).inner_text() == str(pending)
    js.publish("orders.live", b"x")
    wait_until(lambda: row.locator("td").nth(3).inner_text() == str(pending + 1), "the lag grows", 10)
    chart = page.get_by_role("img", name=re.compile("billing: lag"))
    wait_until(
        lambda: f"lag {pending + 1}" in (chart.get_attribute("aria-label") or ""), "the chart follows", 10
    )


def test_messages_are_published_and_browsed(tab: Tab) -> None:
    page = tab.log_in()
    page.get_by_role("link", name="Publish").click()
    page.get_by_label("Subject").fill("plain.browser")
    page.get_by_label("Headers, one a line").fill("Trace: from-the-page\nOther: 2")
    page.get_by_label("Payload").fill('{"big": 12345678901234567890, "list": []}')
    page.get_by_role("button", name="Publish", exact=True).click()
    page.get_by_text("Stored in PLAIN as sequence").wait_for()
    page.get_by_role("link", name="Browse the stream").click()
    page.get_by_label("Subject").fill("plain.browser")
    page.get_by_label("Header").fill("trace: from-the")
    page.get_by_role("button", name="Show", exact=True).click()
    wait_until(lambda: page.locator("button.toggle").count() == 1, "one message is shown", 10)
    page.locator("button.toggle").click()
    payload = page.locator("pre.payload")
    payload.wait_for()
    assert payload.inner_text() == '{\n  "big": 12345678901234567890,\n  "list": []\n}'
    page.get_by_label("Hex").check()
    assert payload.inner_text().startswith("00000000  7b 22 62 69 67 22")
    assert "from-the-page" in page.locator("table.headers").inner_text()


def test_a_publish_that_is_not_allowed_says_why(tab: Tab) -> None:
    page = tab.log_in("rita")
    page.goto(f"{tab.url}#/publish?subject=orders.x")
    page.get_by_role("button", name="Publish", exact=True).click()
    page.get_by_text("your user may not publish orders.x").wait_for()


def test_hostile_messages_are_text(tab: Tab, client: penstock.sync.Client) -> None:
    js = client.jetstream()
    evil = "<img src=x onerror=alert(2)>"
    description = "<script>alert(3)</script>"
    js.create_stream("EVIL", subjects=["evil.>"], description=description)
    js.create_consumer("EVIL", durable_name="<img", filter_subject="evil.<svg/onload=alert(4)>")
    payloads = [evil.encode(), b"\x00\xff<script>", '{"a": "<script>alert(1)</script>\u202e"}'.encode()]
    for payload in payloads:
        js.publish(
            "evil.<script>alert(1)</script>", payload, headers={"X": evil, "<b>Y": "javascript:alert(5)"}
        )
    page = tab.log_in()
    seen = {
        "messages?stream=EVIL": "button.toggle",
        "stream?stream=EVIL": "tr[data-key='<img']",
        "streams": "tr[data-key=EVIL]",
        f"messages?stream=ORDERS&subject={HOSTILE}": "button.toggle",
    }
    for view, shown in seen.items():
        page.goto(f"{tab.url}#/{view}")
        page.locator(shown).first.wait_for()
        if shown == "button.toggle" and "EVIL" in view:
            for at in range(3):
                page.locator("button.toggle").nth(at).click()
            wait_until(lambda: page.locator("pre.payload").count() == 3, "all payloads are shown", 10)
            text = page.locator("main").inner_text()
            assert evil in text
            assert "javascript:alert(5)" in text
            assert "\\u202e" in text
        assert (
            page.locator("main img, main script, main b, main [onerror], main a[href^=javascript]").count()
            == 0
        )


def test_inline_scripts_and_foreign_requests_are_refused_by_the_policy(tab: Tab) -> None:
    page = tab.log_in()
    result = page.evaluate(
        """async () => {
          const refused = [];
          const note = (event) => refused.push(event.effectiveDirective);
          document.addEventListener("securitypolicyviolation", note);
          await fetch("http://203.0.113.9/").catch(() => 0);
          const script = document.createElement("script");
          try { script.textContent = "window.broken = 1"; document.body.append(script); }
          catch { refused.push("types"); }
          try { document.body.innerHTML += "<i>"; } catch { refused.push("markup"); }
          await new Promise((resolve) => setTimeout(resolve, 100));
          return [refused, window.broken];
        }"""
    )
    assert {"connect-src", "markup"} <= set(result[0])
    assert result[1] is None
    tab.troubles.clear()  # the console told of each
    tab.requests[:] = [url for url in tab.requests if "203.0.113.9" not in url]


def test_dead_letters_are_replayed(tab: Tab, client: penstock.sync.Client) -> None:
    js = client.jetstream()
    letters, orders = js.stream_info("LETTERS").state.messages, js.stream_info("ORDERS").state.messages
    page = tab.log_in()
    page.get_by_role("link", name="Dead letters").click()
    wait_until(lambda: page.locator("input.pick").count() == letters, "the letters are listed", 10)
    assert "terminated: cannot parse" in page.locator("main").inner_text()
    page.get_by_label("Select letter").nth(0).check()
    page.get_by_label("Select letter").nth(1).check()
    page.get_by_role("button", name="Replay selected (2)").click()
    page.get_by_text("2 of 2 letters replayed").wait_for()
    wait_until(lambda: page.locator("input.pick").count() == letters - 2, "they are gone from the list", 10)
    assert js.stream_info("LETTERS").state.messages == letters - 2
    assert js.stream_info("ORDERS").state.messages == orders + 2


def test_a_schedule_is_cancelled(tab: Tab, client: penstock.sync.Client) -> None:
    client.jetstream().publish("later.cancelled", b"x", delay=3600)
    page = tab.log_in()
    page.get_by_role("link", name="Schedules").click()
    row = page.locator("tr", has_text="later.cancelled").last
    row.get_by_role("button", name="Cancel").click()
    page.get_by_text("Cancelled.").wait_for()
    wait_until(lambda: page.locator("tr", has_text="later.cancelled").count() == 0, "it is gone", 10)


def test_a_thousand_streams_are_paged_and_filtered(tab: Tab, site: tuple[int, WebVisit]) -> None:
    with penstock.sync.connect(f"nats://bob:secret@127.0.0.1:{site[0]}") as client:
        js = client.jetstream()
        for at in range(1000):
            js.create_stream(f"S{at:04}", subjects=[f"s.{at}"], storage="memory")
    page = tab.log_in("bob")
    began = time.monotonic()
    page.get_by_role("link", name="Streams", exact=True).first.click()
    page.get_by_text("1 to 50 of 1,000").wait_for()
    assert time.monotonic() - began < 5
    assert page.locator("tbody tr").count() == 50
    page.get_by_role("link", name="Next page").click()
    page.get_by_text("51 to 100 of 1,000").wait_for()
    page.get_by_label("Name contains").fill("s099")
    page.get_by_label("Name contains").press("Enter")
    page.get_by_text("1 to 10 of 10").wait_for()
    page.get_by_role("link", name="S0999", exact=True).click()
    page.get_by_role("heading", name="Stream S0999").wait_for()


def test_the_page_is_used_with_the_keyboard_alone(tab: Tab) -> None:
    page = tab.open()
    page.get_by_label("User").wait_for()
    page.keyboard.type("ann")
    page.keyboard.press("Tab")
    page.keyboard.type("secret")
    page.keyboard.press("Enter")
    page.get_by_role("navigation", name="Views").wait_for()
    assert page.evaluate("document.activeElement.textContent") == "Overview"
    page.reload()
    page.get_by_role("navigation", name="Views").wait_for()
    skip = page.get_by_role("link", name="Skip to the content")
    skip.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    skip.focus()
    for name in ("brand", "button", *VIEWS):
        page.keyboard.press("Tab")
        text = page.evaluate("document.activeElement.textContent")
        assert text == {"brand": "penstock", "button": "Log out"}.get(name, name)
        if name == "Messages":
            break
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Messages").wait_for()
    assert page.evaluate("document.activeElement.tagName") == "H1"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.name") == "stream"
    page.keyboard.type("ORDERS")
    page.keyboard.press("Enter")
    toggle = page.locator("button.toggle").first
    toggle.wait_for()
    toggle.focus()
    page.keyboard.press("Enter")
    page.locator("pre.payload").wait_for()
    assert toggle.get_attribute("aria-expanded") == "true"
    page.keyboard.press("Space")
    assert toggle.get_attribute("aria-expanded") == "false"


def test_a_slice_that_arrives_keeps_the_focus(tab: Tab, client: penstock.sync.Client) -> None:
    page = tab.log_in()
    page.goto(f"{tab.url}#/streams")
    row = page.locator("tr[data-key=PLAIN]")
    browse = row.get_by_role("link", name="Browse PLAIN")
    browse.focus()
    before = row.inner_text()
    client.jetstream().publish("plain.focus", b"x")
    wait_until(lambda: row.inner_text() != before, "the row changes", 10)
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Browse PLAIN"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_has_landmarks_labels_and_contrast(
    browser: Any, site: tuple[int, WebVisit], scheme: str
) -> None:
    tab = Tab(browser, f"http://127.0.0.1:{site[1].port}/ui/", color_scheme=scheme)
    page = tab.log_in()
    for name in VIEWS:
        page.get_by_role("navigation", name="Views").get_by_role("link", name=name, exact=True).click()
        page.get_by_role("heading", name=name, exact=True, level=1).wait_for()
        page.wait_for_timeout(150)
        assert page.get_by_role("main").count() == page.get_by_role("banner").count() == 1
        assert page.locator("a[aria-current=page]").inner_text() == name
        assert page.evaluate(UNLABELLED) == []
        assert page.evaluate(LOW_CONTRAST) == [], f"{name} in {scheme}"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} scrolls sideways"
    tab.close()


def test_the_page_fits_a_narrow_screen(browser: Any, site: tuple[int, WebVisit]) -> None:
    tab = Tab(browser, f"http://127.0.0.1:{site[1].port}/ui/", viewport={"width": 390, "height": 800})
    page = tab.log_in()
    for view in ("overview", "streams", "messages?stream=ORDERS", "connections", "publish"):
        page.goto(f"{tab.url}#/{view}")
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
    tab.close()


def test_a_user_chooses_a_file_with_the_seed_of_an_nkey(browser: Any, tmp_path: Path) -> None:
    seeds = {name: tmp_path / f"{name}.nk" for name in ("joe", "eve")}
    for name, path in seeds.items():
        path.write_text(key("user", name).seed + "\n")
    conf = f"""http: "127.0.0.1:-1"\nweb: true
        authorization {{ users: [{{nkey: {key("user", "joe").public}}}] }}"""
    with web_server(tmp_path, conf=conf) as (_, visit):
        tab = Tab(browser, f"http://127.0.0.1:{visit.port}/ui/")
        page = tab.open()
        page.get_by_text("Log in with a credentials file or an nkey").click()
        seed = page.get_by_label("Credentials, or the seed of an nkey")
        for name in ("eve", "joe"):
            page.get_by_label("File").set_input_files(seeds[name])
            wait_until(lambda: seed.input_value() != "", "the file is read")
            page.get_by_role("button", name="Log in").click()
            if name == "eve":
                assert "refused these credentials" in page.get_by_role("alert").inner_text()
                assert seed.input_value() == ""
        page.get_by_role("heading", name="Overview", exact=True).wait_for()
        tab.close()


def test_a_session_that_ended_asks_for_a_login(browser: Any, site: tuple[int, WebVisit]) -> None:
    tab = Tab(browser, f"http://127.0.0.1:{site[1].port}/ui/")
    page = tab.log_in()
    tab.context.clear_cookies()
    page.get_by_role("link", name="Streams", exact=True).first.click()
    page.get_by_text("Your session has ended").wait_for()
    page.get_by_label("User").wait_for()
    tab.close()


UNLABELLED = """[...document.querySelectorAll("input, select, textarea, button, a, meter, [role=img]")]
  .filter((one) => one.offsetParent !== null && !one.labels?.length && !one.getAttribute("aria-label")
    && !one.textContent.trim()).map((one) => one.outerHTML)"""

# Contrast of text by WCAG: 4.5 to 1 at least. Backgrounds are those of the nearest ancestor that has one.
LOW_CONTRAST = """(() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => [r, g, b].map(linear)
    .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  const ground = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const color = parse(getComputedStyle(at).backgroundColor);
      if (color.length === 3 || color[3] > 0.99) return color;
    }
    return [255, 255, 255];
  };
  const found = new Set();
  for (const one of document.querySelectorAll("body *")) {
    const own = [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || one.offsetParent === null || one.disabled || one.closest(".unseen, .skip")) continue;
    const [high, low] = [light(parse(getComputedStyle(one).color)), light(ground(one))].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    const words = `${one.tagName} ${one.className} ${one.textContent.slice(0, 30)}`;
    if (ratio < 4.5) found.add(`${words}: ${ratio.toFixed(2)}`);
  }
  return [...found];
})()"""
