// Publishing one message as the logged-in user.

import { act, session } from "./api.js";
import { checkbox, field, h, link, problem, values } from "./dom.js";
import { visible } from "./format.js";

export const READ_ONLY = "This page is read-only. The server's configuration changes that: web { allow_writes: true }.";

/** "Name: value" lines as pairs. Throws an Error for another line. */
function headersOf(text) {
  return (text || "").split("\n").filter((line) => line.trim()).map((line) => {
    const at = line.indexOf(":");
    if (at < 1) throw new Error(`"${line}" is no header: write it as Name: value`);
    return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
  });
}

export function mount(root, query) {
  if (!session.writes) {
    root.append(h("p", {}, READ_ONLY));
    return () => {};
  }
  const result = h("div", { role: "status" });
  const submit = async (event) => {
    event.preventDefault();
    const given = values(form);
    button.disabled = true;
    try {
      const sent = { subject: given.subject, headers: headersOf(given.headers), payload: given.payload || "", stored: Boolean(given.stored) };
      const found = await act("publish", sent);
      result.replaceChildren(found.stream
        ? h("p", { class: "done" }, `Stored in ${visible(found.stream)} as sequence ${found.seq}${found.duplicate ? " (a duplicate: it was there already)" : ""}. `, link("messages", { stream: found.stream }, "Browse the stream"))
        : h("p", { class: "done" }, "Published."));
    } catch (refused) {
      result.replaceChildren(problem(refused.message));
    } finally {
      button.disabled = false;
    }
  };
  const button = h("button", { class: "primary" }, "Publish");
  const form = h("form", { class: "publish", onsubmit: submit, "aria-label": "Publish a message" },
    field("Subject", "subject", "text", { required: true, value: query.subject || "" }),
    field("Headers, one a line", "headers", "textarea", { rows: 3, placeholder: "Name: value" }),
    field("Payload", "payload", "textarea", { rows: 10 }),
    checkbox("Wait until a stream has stored it", "stored", true),
    button, result);
  root.append(h("p", { class: "quiet" }, `Published as ${visible(session.user || "anonymous")} in account ${visible(session.account)}, with that user's permissions.`), form);
  return () => {};
}
