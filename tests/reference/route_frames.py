"""A parser of route frames that looks at the whole input at once, with splits."""

from __future__ import annotations

from dataclasses import dataclass, field

WIDE_LINE = 64 << 10
PAYLOAD_MAX = 64 << 20


@dataclass
class Parsed:
    """What a stream of bytes amounts to: frames, then an error, then bytes left over."""

    frames: list[tuple[object, ...]] = field(default_factory=list)
    error: str = ""
    rest: bytes = b""


def size_of(word: bytes) -> int | None:
    return int(word) if word.isdigit() and len(word) <= 9 else None


def words_of(text: bytes) -> list[bytes]:
    return [word for word in text.replace(b"\t", b" ").split(b" ") if word]


def interest(verb: bytes, words: list[bytes], account: bytes) -> tuple[object, ...] | None:
    """RS+, RS-, LS+, LS-: ("sub", is leaf, origin, account, subject, queue, weight); None = malformed."""
    is_leaf = verb.startswith(b"L")
    origin = words.pop(0) if is_leaf and words else b""
    if not account:
        account_word = words.pop(0) if words else b""
    else:
        account_word = b""
    allowed = (1, 3) if verb.endswith(b"+") else (1, 2)
    if len(words) not in allowed or (is_leaf and not origin) or (not account and not account_word):
        return None
    weight = (size_of(words[2]) or 1) if len(words) == 3 else 1
    kind = "sub" if verb.endswith(b"+") else "unsub"
    return kind, is_leaf, origin, account_word, words[0], words[1] if len(words) > 1 else b"", max(1, weight)


def message(verb: bytes, words: list[bytes], account: bytes) -> tuple[object, ...] | None:
    """RMSG, HMSG, LMSG without the body: (is leaf, origin, account, subject, reply, queues, header size,
    size)."""
    is_leaf = verb == b"LMSG"
    sizes = 1 if verb == b"RMSG" else 2
    base = is_leaf + (not account)
    if len(words) < base + 1 + sizes:
        return None
    origin = words[0] if is_leaf else b""
    account_word = words[base - 1] if not account else b""
    subject, between = words[base], words[base + 1 : len(words) - sizes]
    reply, queues = b"", []
    if len(between) == 1:
        reply = between[0]
    elif between:
        if between[0] == b"+":
            reply, queues = between[1], between[2:]
        elif between[0] == b"|":
            queues = between[1:]
        else:
            return None
    size = size_of(words[-1])
    header = size_of(words[-2]) if sizes == 2 else 0
    if size is None or header is None or header > size:
        return None
    return is_leaf, origin, account_word, subject, reply, queues, header, size


def parse(data: bytes, account: bytes = b"") -> Parsed:
    """All route frames in the data. Only the verbs of messages and interest, in capitals."""
    parsed = Parsed(rest=data)
    while b"\n" in parsed.rest:
        line, after = parsed.rest.split(b"\n", 1)
        line = line.removesuffix(b"\r")
        verb, _, arguments = line.replace(b"\t", b" ", 1).partition(b" ")
        words = words_of(arguments)
        if b"\r" in arguments:
            parsed.error = "MALFORMED"
            return parsed
        if verb in (b"RMSG", b"HMSG", b"LMSG"):
            found = message(verb, words, account)
            if found is None:
                parsed.error = "MALFORMED"
                return parsed
            *head, size = found
            if size > PAYLOAD_MAX:
                parsed.error = "PAYLOAD"
                return parsed
            if len(after) < size + 2:
                return parsed
            if after[size : size + 2] != b"\r\n":
                parsed.error = "UNKNOWN_OPERATION"
                return parsed
            parsed.frames.append(("message", *head, after[:size]))
            parsed.rest = after[size + 2 :]
            continue
        found = interest(verb, words, account)
        if found is None:
            parsed.error = "MALFORMED"
            return parsed
        parsed.frames.append(found)
        parsed.rest = after
    return parsed
