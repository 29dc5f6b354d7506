"""Checks of a request before it reaches a view: origin, host, peer, names. Pure functions.

Why each: a page of another site may send requests here from a browser that is logged in (same origin, CSRF).
It may also give its own name this server's address, and then be of the same origin (host of anonymous users).
Names become part of a protocol line (`checked_name`, `checked_subject`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from penstock.errors import MisuseError
from penstock.protocol.subjects import is_valid_filter, is_valid_subject

NAME_MAX = 255
SUBJECT_MAX = 4096
_NOT_IN_NAMES = frozenset(" .*>/\\")


def is_same_origin(headers: Mapping[str, str], scheme: str) -> bool:
    """Whether a request comes from the page itself. headers: by lower-case name."""
    site = headers.get("sec-fetch-site")
    if site is not None and site != "same-origin":
        return False
    origin = headers.get("origin")
    return origin is None or origin == f"{scheme}://{headers.get('host', '')}"


def is_this_machine(peer_host: str) -> bool:
    """Whether a peer's address is a loopback address."""
    try:
        address = ipaddress.ip_address(peer_host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def is_plain_host(host: str) -> bool:
    """Whether a Host header is an IP address or `localhost`: no name that a stranger's DNS could resolve."""
    name = host
    if host.startswith("["):
        name = host[1:].partition("]")[0]
    elif host.count(":") == 1:
        name = host.partition(":")[0]
    if name.lower() == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def checked_name(name: str, what: str) -> str:
    """A stream's or consumer's name. Raises MisuseError."""
    if not name or len(name) > NAME_MAX or not name.isprintable() or _NOT_IN_NAMES & set(name):
        raise MisuseError(f"{name[:NAME_MAX]!r} is no name of a {what}")
    return name


def checked_subject(subject: str, *, wildcards: bool) -> str:
    """A subject, or a filter of subjects. Raises MisuseError."""
    is_valid = is_valid_filter if wildcards else is_valid_subject
    plain = len(subject) <= SUBJECT_MAX and subject.isprintable() and " " not in subject
    if not plain or not is_valid(subject):
        raise MisuseError(f"{subject[:NAME_MAX]!r} is no {'filter' if wildcards else 'subject'}")
    return subject


def natural_number(query: Mapping[str, str], name: str, default: int, limit: int) -> int:
    """A number of a query, at most `limit`. Raises MisuseError."""
    text = query.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise MisuseError(f"{name} is {text[:40]!r}; it must be a number")
    return min(int(text), limit)
