"""A NATS frame parser that looks at the whole input at once, with regular expressions and splits."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

VERBS = {
    b"PUB": "PUB", b"HPUB": "HPUB", b"SUB": "SUB", b"UNSUB": "UNSUB", b"MSG": "MSG", b"HMSG": "HMSG",
    b"PING": "PING", b"PONG": "PONG", b"CONNECT": "CONNECT", b"INFO": "INFO", b"+OK": "OK", b"-ERR": "ERR",
}  # fmt: skip
FOLLOWED_BY_BLANK = {b"PUB", b"HPUB", b"SUB", b"UNSUB", b"MSG", b"HMSG"}
LINE_SLACK = 16


@dataclass
class Parsed:
    """What a stream of bytes amounts to: frames, then an error, then bytes left over."""

    frames: list[tuple[object, ...]] = field(default_factory=list)
    error: str = ""
    rest: bytes = b""


class Unterminated(Exception):
    """A payload is not followed by CRLF."""


class Malformed(Exception):
    pass


class TooLarge(Exception):
    pass


def verb_of(line: bytes) -> bytes | None:
    """The verb a whole line starts with, or None."""
    for verb in VERBS:
        if line[: len(verb)].upper() == verb:
            after = line[len(verb) : len(verb) + 1]
            if verb in FOLLOWED_BY_BLANK and after not in (b" ", b"\t"):
                return None
            if verb == b"-ERR" and after not in (b" ", b"\t", b"\r", b""):
                return None
            return verb
    return None


def may_become_verb(line: bytes) -> bool:
    """Could this beginning of a line still grow into one with a verb?"""
    return any(
        verb_of(line + tail) is not None
        for verb in VERBS
        for tail in (b"", verb[len(line) :], verb[len(line) :] + b" ")
        if verb.startswith(line[: len(verb)].upper())
    )


def size(token: bytes) -> int:
    if not re.fullmatch(rb"[0-9]{1,9}", token):
        raise Malformed
    return int(token)


def arguments(text: bytes, counts: tuple[int, ...]) -> list[bytes]:
    if b"\r" in text:
        raise Malformed
    args = [a for a in re.split(rb"[ \t]+", text) if a]
    if len(args) not in counts:
        raise Malformed
    return args


def message(op: str, text: bytes, after: bytes, max_payload: int) -> tuple[tuple[object, ...], int] | None:
    """The frame and how many bytes of `after` it takes; None when they aren't all there."""
    sid = None
    if op in ("PUB", "MSG"):
        counts = (2, 3) if op == "PUB" else (3, 4)
        args = arguments(text, counts)
        header_size = 0
    else:
        counts = (3, 4) if op == "HPUB" else (4, 5)
        args = arguments(text, counts)
    total = size(args.pop())
    if op in ("HPUB", "HMSG"):
        header_size = size(args.pop())
        if header_size > total:
            raise Malformed
    if max_payload and total > max_payload:
        raise TooLarge
    subject = args.pop(0)
    if op in ("MSG", "HMSG"):
        sid = args.pop(0)
    reply = args.pop(0) if args else None
    if len(after) < total + 2:
        return None
    if after[total : total + 2] != b"\r\n":
        raise Unterminated
    header = after[:header_size] if op in ("HPUB", "HMSG") else None
    return (op, subject, reply, sid, header, after[header_size:total], 0), total + 2


def control(op: str, text: bytes) -> tuple[object, ...]:
    if op == "SUB":
        args = arguments(text, (2, 3))
        return (op, args[0], args[1] if len(args) == 3 else None, args[-1], None, None, 0)
    if op == "UNSUB":
        args = arguments(text, (1, 2))
        most = int(args[1]) if len(args) == 2 and re.fullmatch(rb"[0-9]{1,9}", args[1]) else 0
        return (op, None, None, args[0], None, None, most)
    if op in ("CONNECT", "INFO", "ERR"):
        text = text.rstrip(b" \t")
        if op == "ERR" and len(text) >= 2 and text[:1] == text[-1:] == b"'":
            text = text[1:-1]
        return (op, None, None, None, None, text, 0)
    return (op, None, None, None, None, None, 0)


def parse(data: bytes, max_control_line: int = 4096, max_payload: int = 0) -> Parsed:
    """Everything `data` holds."""
    parsed = Parsed(rest=data)
    while parsed.rest:
        line, lf, after = parsed.rest.partition(b"\n")
        verb = verb_of(line)
        if verb is None and (lf or not may_become_verb(line)):
            parsed.error = "UNKNOWN_OPERATION"
            break
        if len(line) > max_control_line + LINE_SLACK:
            parsed.error = "CONTROL_LINE"
            break
        if not lf:
            break
        assert verb is not None
        op = VERBS[verb]
        text = line[len(verb) :].lstrip(b" \t")
        text = text.removesuffix(b"\r")
        if len(text) > max_control_line:
            parsed.error = "CONTROL_LINE"
            break
        try:
            if op in ("PUB", "HPUB", "MSG", "HMSG"):
                found = message(op, text, after, max_payload)
                if found is None:
                    break
                parsed.frames.append(found[0])
                parsed.rest = after[found[1] :]
            else:
                parsed.frames.append(control(op, text))
                parsed.rest = after
        except Malformed:
            parsed.error = "MALFORMED"
            break
        except Unterminated:
            parsed.error = "UNKNOWN_OPERATION"
            break
        except TooLarge:
            parsed.error = "PAYLOAD"
            break
    return parsed
