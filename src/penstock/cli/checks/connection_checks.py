"""Checks of connections, request-reply services and credentials files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.cli.checks.check_result import CheckResult
from penstock.errors import MisuseError
from penstock.protocol.durations import NS_PER_S, format_duration
from penstock.protocol.jwt import decode, parse_token


@dataclass(frozen=True)
class ConnectionThresholds:
    """Seconds; 0 turns a threshold off."""

    connect_warn: float = 0.5
    connect_critical: float = 1.0
    rtt_warn: float = 0.5
    rtt_critical: float = 1.0
    request_warn: float = 0.5
    request_critical: float = 1.0


@dataclass(frozen=True)
class ConnectionTimes:
    """Measured seconds. rtt: of a PING. request: of a message through the server back to this client."""

    connect: float
    rtt: float
    request: float


def check_connection(
    result: CheckResult, url: str, times: ConnectionTimes, limits: ConnectionThresholds
) -> None:
    """Judge the times of a connection to `url`."""
    rows = (
        ("connect_time", "Time taken to connect", f"connected to {url} in", times.connect,
         limits.connect_warn, limits.connect_critical),
        ("rtt", "Round-trip time of the connection", "rtt time", times.rtt,
         limits.rtt_warn, limits.rtt_critical),
        ("request_time", "Time taken by a message through the server", "round trip took", times.request,
         limits.request_warn, limits.request_critical),
    )  # fmt: skip
    for name, about, text, value, warn, critical in rows:
        result.measure(name, value, about, unit="s", warn=warn, crit=critical)
        judge_seconds(result, f"{text} {_shown(value)}", value, warn, critical)


def judge_seconds(result: CheckResult, text: str, value: float, warn: float, critical: float) -> None:
    """A finding about a time; thresholds of 0 are none."""
    if critical > 0 and value >= critical:
        result.critical(f"{text}, exceeds {_shown(critical)}")
    elif warn > 0 and value >= warn:
        result.warn(f"{text}, exceeds {_shown(warn)}")
    else:
        result.ok(text)


@dataclass(frozen=True)
class RequestExpectations:
    """What the answer of a service should be. match_payload: a regular expression. match_headers: values by
    name. Times in seconds; 0 turns a threshold off."""

    match_payload: str = ""
    match_headers: Mapping[str, str] = field(default_factory=dict)
    response_warn: float = 0
    response_critical: float = 0


def check_request(
    result: CheckResult,
    payload: bytes,
    headers: Mapping[str, str],
    seconds: float,
    expected: RequestExpectations,
) -> None:
    """Judge the answer to a request. Raises MisuseError for an invalid regular expression."""
    result.measure(
        "time", seconds, "How long the request took", unit="s",
        warn=expected.response_warn, crit=expected.response_critical,
    )  # fmt: skip
    if expected.match_payload and not matches(expected.match_payload, payload):
        result.critical("response does not match regexp")
    for name, value in expected.match_headers.items():
        found = headers.get(name, "")
        if found != value:
            result.critical(f'invalid header "{name}" = "{found}"')
    if expected.response_critical > 0 and seconds > expected.response_critical:
        result.critical(f"response took {_shown(seconds)}")
    elif expected.response_warn > 0 and seconds > expected.response_warn:
        result.warn(f"response took {_shown(seconds)}")
    result.ok_unless_found("Valid response")


def matches(pattern: str, payload: bytes) -> bool:
    """Whether a regular expression is found in a payload. Raises MisuseError for an invalid one."""
    try:
        return re.search(pattern, payload.decode("utf-8", "replace")) is not None
    except re.error as error:
        raise MisuseError(f"{pattern!r} is not a regular expression: {error}") from None


def check_credential(
    result: CheckResult,
    text: str,
    now_s: int,
    *,
    validity_warn: float = 0,
    validity_critical: float = 0,
    require_expiry: bool = True,
) -> None:
    """Judge the time until the JWT of a credentials file expires. text: its content. now_s: s since 1970."""
    try:
        claims = decode(parse_token(text))
    except MisuseError as error:
        result.critical(f"invalid credential: {error}")
        return
    left = claims.expires - now_s
    result.measure(
        "expiry", left if claims.expires else 0, "Seconds until expiry, 0 = never", unit="s",
        warn=validity_warn, crit=validity_critical,
    )  # fmt: skip
    if not claims.expires:
        result.judge("never expires", is_critical=require_expiry)
    elif left <= 0:
        result.critical(f"expired {_shown(-left)} ago")
    elif validity_critical > 0 and left <= validity_critical:
        result.critical(f"expires sooner than {_shown(validity_critical)}")
    elif validity_warn > 0 and left <= validity_warn:
        result.warn(f"expires sooner than {_shown(validity_warn)}")
    else:
        result.ok(f"expires in {_shown(left)}")


def _shown(seconds: float) -> str:
    return format_duration(round(seconds * NS_PER_S))
