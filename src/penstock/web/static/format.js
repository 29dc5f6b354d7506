// Numbers, sizes, times and foreign text for people.

const number = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function count(value) {
  return value === undefined || value === null ? "–" : number.format(value);
}

export function compact(value) {
  return Math.abs(value) < 10000 ? number.format(Math.round(value * 10) / 10) : short.format(value);
}

export function size(bytes) {
  if (bytes === undefined || bytes === null) return "–";
  let unit = 0;
  let value = bytes;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit ? value.toFixed(value < 10 ? 2 : 1) : value} ${UNITS[unit]}`;
}

/** A time as the browser's zone shows it; "–" for none. */
export function time(text) {
  if (!text || text.startsWith("0001")) return "–";
  const date = new Date(text);
  if (Number.isNaN(date.getTime())) return visible(text);
  const pad = (value, length = 2) => String(value).padStart(length, "0");
  const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  const clock = `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
  return `${day} ${clock}.${pad(date.getMilliseconds(), 3)}`;
}

// Control characters, and those that reorder or hide text.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

function escaped(character) {
  return `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`;
}

/** Foreign text in one line: what cannot be seen is escaped. */
export function visible(text) {
  return String(text).replace(UNSEEN, escaped);
}

/** Foreign text of several lines. */
export function visibleLines(text) {
  return String(text).replace(UNSEEN, (one) => (one === "\n" || one === "\t" ? one : escaped(one)));
}

export function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (one) => one.charCodeAt(0));
}

/** UTF-8 text, or null if the bytes are none. cut: they may end in the middle of a character. */
export function textOf(bytes, cut = false) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes, { stream: cut });
  } catch {
    return null;
  }
}

/** JSON with indentation, or null. It works on the text, so that long numbers keep all their digits. */
export function prettyJson(text) {
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  let depth = 0;
  const line = () => `\n${"  ".repeat(depth)}`;
  return text.replace(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+|\s+/g, (token, at) => {
    if (/^\s/.test(token)) return "";
    if (token === "{" || token === "[") {
      const rest = text.slice(at + 1).match(/^\s*([\]}])/);
      depth += 1;
      return rest ? token : token + line();
    }
    if (token === "}" || token === "]") {
      depth -= 1;
      return /[{[]\s*$/.test(text.slice(Math.max(0, at - 64), at)) ? token : line() + token;
    }
    if (token === ",") return token + line();
    return token === ":" ? ": " : token;
  });
}

export function hexDump(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const row = [...bytes.subarray(at, at + 16)];
    const hex = row.map((one) => one.toString(16).padStart(2, "0")).join(" ");
    const text = row.map((one) => (one >= 32 && one < 127 ? String.fromCharCode(one) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${hex.padEnd(47)}  ${text}`);
  }
  return lines.join("\n");
}
