// Requests to the server that served this page. There are no others.

export const session = { user: null, account: "", csrf: "", writes: false, server: "", version: "" };
let onGone = () => {};

/** What to do when the session has ended. */
export function whenGone(callback) {
  onGone = callback;
}

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

async function call(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, { credentials: "same-origin", cache: "no-store", ...options });
  } catch {
    throw new Refused(0, "the server cannot be reached");
  }
  const found = await answer.json().catch(() => ({ error: `the server answered with status ${answer.status}` }));
  if (answer.ok) return found;
  if (answer.status === 401 && session.csrf) onGone();
  throw new Refused(answer.status, found.error || `status ${answer.status}`);
}

function post(path, body) {
  const headers = { "Content-Type": "application/json", "X-CSRF-Token": session.csrf };
  return call(path, { method: "POST", headers, body: JSON.stringify(body) });
}

function use(found) {
  Object.assign(session, { user: null, csrf: "", writes: false }, found);
  return found;
}

export const about = async () => use(await call("api/session"));
export const logIn = async (given) => use(await post("api/login", given));
export const act = (name, body) => post(`api/do/${name}`, body);

export async function logOut() {
  await post("api/logout", {});
  use({});
}

export function view(name, query = {}) {
  return call(`api/view/${name}?${new URLSearchParams(query)}`);
}

/**
 * Slices of a view as they come. The server ends a stream of events after half a minute, and the browser opens
 * the next one by itself. Returns a function that stops it.
 */
export function live(name, query, { slice, failed = () => {}, state = () => {} }) {
  const source = new EventSource(`api/live/${name}?${new URLSearchParams(query)}`);
  source.addEventListener("slice", (event) => {
    state(true);
    slice(JSON.parse(event.data));
  });
  source.addEventListener("problem", (event) => failed(JSON.parse(event.data).error));
  source.addEventListener("gone", () => {
    source.close();
    onGone();
  });
  source.addEventListener("error", async () => {
    if (source.readyState !== EventSource.CLOSED) return; // it reconnects
    state(false);
    const found = await about().catch(() => null);
    if (found && !found.csrf) onGone();
  });
  return () => source.close();
}
