"""Decides which requests to an exported service are measured: by sampling, or by tracing headers.

Supports the same four header formats as the official server: Uber, B3 (several headers or one) and W3C trace
context.
"""

from __future__ import annotations

from penstock.errors import ProtocolError
from penstock.protocol import headers

UBER, UBER_CONTEXT = "Uber-Trace-Id", "Uberctx-"
B3, B3_SAMPLED, B3_TRACE, B3_SPAN, B3_PARENT = (
    "B3", "X-B3-Sampled", "X-B3-Traceid", "X-B3-Spanid", "X-B3-Parentspanid",
)  # fmt: skip
CONTEXT, CONTEXT_STATE = "Traceparent", "Tracestate"
Headers = dict[str, list[str]]


def sampled(sampling: int, header: bytes, percent: int) -> Headers | None:
    """Whether to measure a request.

    Args:
        sampling: percent; 0 = by headers only.
        header: header block of the request; b"" = none.
        percent: uniformly distributed integer in 0..99.

    Returns:
        The headers that requested it, {} for sampling, None when it is not measured.
    """
    if sampling >= 100 or (sampling > 0 and percent <= sampling):
        return {}
    found: Headers = {}
    if header:
        try:
            block = headers.parse(header)
        except ProtocolError:
            return None
        for name, value in block.headers.pairs():
            found.setdefault(_canonical(name), []).append(value)
    return by_headers(found) if found else None


def by_headers(found: Headers) -> Headers | None:
    """The tracing headers, if they request a measurement."""
    if UBER in found:
        words = found[UBER][0].split(":")
        flags = _hexadecimal(words[3], 2) if len(words) == 4 else None
        if flags is None or not flags & 1:
            return None
        return {n: v for n, v in found.items() if n == UBER or n.startswith(UBER_CONTEXT)}
    decision = found.get(B3_SAMPLED, [""])[0]
    if decision == "0":
        return None
    if decision == "1" or B3_TRACE in found:
        return {n: found[n] for n in (B3_SAMPLED, B3_TRACE, B3_PARENT, B3_SPAN) if n in found}
    if B3 in found:
        words = found[B3][0].split("-")
        refused = words[2] == "0" if len(words) > 2 else words == ["0"]
        return None if refused else {B3: found[B3]}
    if CONTEXT in found:
        words = found[CONTEXT][0].split("-")
        flags = _hexadecimal(words[3], 2) if len(words) == 4 and len(words[3]) == 2 else None
        if flags is None or not flags & 1:
            return None
        return {n: found[n] for n in (CONTEXT, CONTEXT_STATE) if n in found}
    return None


def _hexadecimal(text: str, digits: int) -> int | None:
    try:
        return int(text, 16) if 0 < len(text) <= digits else None
    except ValueError:
        return None


def _canonical(name: str) -> str:
    """Canonical MIME header name: `x-b3-TraceId` becomes `X-B3-Traceid`."""
    return "-".join(word.capitalize() for word in name.split("-"))
