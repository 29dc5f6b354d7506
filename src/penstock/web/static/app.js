// Login, navigation, and the view of the current address.

import { about, logIn, logOut, session, whenGone } from "./api.js";
import { forgetSamples } from "./chart.js";
import { field, h, link, problem, values } from "./dom.js";
import { visible } from "./format.js";
import * as cluster from "./cluster.js";
import * as connections from "./connections.js";
import * as deadLetters from "./dead_letters.js";
import * as messages from "./messages.js";
import * as overview from "./overview.js";
import * as publish from "./publish.js";
import * as schedules from "./schedules.js";
import * as spark from "./spark.js";
import * as stream from "./stream.js";
import * as streams from "./streams.js";

const VIEWS = {
  overview: { title: "Overview", mount: overview.mount },
  streams: { title: "Streams", mount: streams.mount },
  stream: { title: "Stream", mount: stream.mount, under: "streams" },
  messages: { title: "Messages", mount: messages.mount },
  publish: { title: "Publish", mount: publish.mount },
  "dead-letters": { title: "Dead letters", mount: deadLetters.mount },
  schedules: { title: "Schedules", mount: schedules.mount },
  accounts: { title: "Accounts", mount: connections.mountAccounts },
  connections: { title: "Connections", mount: connections.mount },
  cluster: { title: "Cluster", mount: cluster.mount },
  spark: { title: "Spark queries", mount: spark.mount },
};
const root = document.getElementById("app");
const statusLine = document.getElementById("status");
let stopView = () => {};
let before = ""; // the name of the view that was shown last
let movesFocus = false; // after a login, whose form is gone
let shown = null; // the elements of the frame, once somebody is logged in

function say(text) {
  if (statusLine.textContent !== text) statusLine.textContent = text;
}

function showLogin(found, text = "") {
  stopView();
  stopView = () => {};
  shown = null;
  forgetSamples();
  document.title = "Log in – penstock";
  const error = h("div", {}, text && problem(text));
  const submit = async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      await logIn(values(form));
      movesFocus = true;
      showFrame();
    } catch (refused) {
      error.replaceChildren(problem(refused.message));
      form.elements.password.value = form.elements.credentials.value = "";
      (form.elements.user.value ? form.elements.password : form.elements.user).focus();
    } finally {
      button.disabled = false;
    }
  };
  const button = h("button", { class: "primary" }, "Log in");
  const form = h("form", { onsubmit: submit, "aria-label": "Log in" },
    field("User", "user", "text", { autocomplete: "username" }),
    field("Password", "password", "password", { autocomplete: "current-password" }),
    h("details", {}, h("summary", {}, "Log in with a token instead"), field("Token", "token", "password")),
    h("details", {}, h("summary", {}, "Log in with a credentials file or an nkey"),
      h("label", { class: "field" }, "File", h("input", { type: "file", onchange: async (event) => {
        const [file] = event.target.files;
        if (file) form.elements.credentials.value = await file.text();
      } })),
      field("Credentials, or the seed of an nkey", "credentials", "textarea", { rows: 4, autocomplete: "off" })),
    button);
  root.replaceChildren(h("main", { id: "main", class: "login" },
    h("h1", {}, h("img", { src: "icon.svg", alt: "", width: 32, height: 32 }), "penstock"),
    found.refused ? problem(found.refused) : h("p", { class: "quiet" }, "Log in as a user of this server."),
    error, !found.refused && form));
  if (!found.refused) form.elements.user.focus();
}

function showFrame() {
  const items = Object.entries(VIEWS).filter(([, one]) => !one.under);
  const nav = h("nav", { "aria-label": "Views" }, h("ul", {}, items.map(([path, one]) => h("li", {}, link(path, {}, one.title, { "data-path": path })))));
  const main = h("main", { id: "main", tabindex: -1 });
  const out = h("button", { onclick: async () => { await logOut().catch(() => {}); start(); } }, "Log out");
  const mode = session.writes ? null : h("span", { class: "badge", title: "web { allow_writes: true } changes that" }, "read-only");
  shown = { main, nav };
  root.replaceChildren(h("div", { class: "frame" },
    h("header", {},
      h("a", { class: "brand", href: "#/overview" }, h("img", { src: "icon.svg", alt: "", width: 24, height: 24 }), "penstock"),
      h("span", { class: "server", title: session.server }, visible(session.server)),
      h("span", { class: "grow" }), mode,
      h("span", { class: "who" }, `${visible(session.user || "anonymous")} · account ${visible(session.account)}`), out),
    nav, main));
  showView();
}

function showView() {
  if (!shown) return;
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  if (path === "main") return; // the link that skips the navigation
  const name = path in VIEWS ? path : "overview";
  const found = VIEWS[name];
  stopView();
  say("");
  for (const one of shown.nav.querySelectorAll("a")) {
    if (one.dataset.path === (found.under || name)) one.setAttribute("aria-current", "page");
    else one.removeAttribute("aria-current");
  }
  document.title = `${found.title} – penstock`;
  const heading = h("h1", { tabindex: -1 }, found.title);
  const body = h("div", { class: "view" });
  const trouble = h("div", {});
  shown.main.replaceChildren(heading, trouble, body);
  stopView = found.mount(body, Object.fromEntries(new URLSearchParams(query)), {
    heading,
    failed: (text) => trouble.replaceChildren(problem(visible(text))),
    well: () => trouble.replaceChildren(),
    say,
    state: (isLive) => say(isLive ? "" : "Not live: the server cannot be reached."),
  }) || (() => {});
  if (movesFocus || before !== name) heading.focus();
  movesFocus = false;
  before = name;
}

async function start() {
  let found;
  try {
    found = await about();
    if (!found.csrf && found.anonymous) found = await logIn({});
  } catch (refused) {
    showLogin(found || {}, found ? "" : refused.message);
    return;
  }
  if (found.csrf) showFrame();
  else showLogin(found);
}

whenGone(() => {
  if (shown) showLogin({}, "Your session has ended. Log in again.");
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main")?.focus();
});
window.addEventListener("hashchange", showView);
start();
