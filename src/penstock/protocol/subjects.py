"""Subject grammar in Python, for configuration, the client and other cold paths.

A subject is non-empty tokens separated by dots, without whitespace or NUL, at most FILTER_MAX bytes. In a
filter `*` matches one token, and `>` as the last token one or more. The kernels implement the same rules for
hot paths.
"""

from __future__ import annotations

from penstock.errors import InvalidSubjectError

STREAM_NAME_MAX = 255
FILTER_MAX = 1 << 15  # bytes of a subject or filter; limit of the subscription index
_FORBIDDEN = frozenset(" \t\r\n\f\0")
_FORBIDDEN_IN_NAMES = frozenset(" \t\r\n\f\0.*>/\\")


def is_valid_filter(subject: str) -> bool:
    """Whether clients may subscribe to it."""
    if not subject or is_too_long(subject) or not _FORBIDDEN.isdisjoint(subject):
        return False
    tokens = subject.split(".")
    return all(tokens) and ">" not in tokens[:-1]


def is_too_long(subject: str) -> bool:
    """Whether it exceeds FILTER_MAX. The index refuses such a filter, so configurations must as well."""
    if len(subject) * 4 <= FILTER_MAX:
        return False
    return len(subject.encode("utf-8", "surrogateescape")) > FILTER_MAX


def is_valid_subject(subject: str) -> bool:
    """Whether clients may publish to it: a valid filter without wildcards."""
    return is_valid_filter(subject) and not has_wildcard(subject)


def has_wildcard(subject: str) -> bool:
    """Whether a token is `*` or `>`. (`a*` is a literal token.)"""
    if "*" not in subject and ">" not in subject:
        return False
    tokens = subject.split(".")
    return "*" in tokens or tokens[-1] == ">"


def is_valid_name(name: str) -> bool:
    """Whether it is valid as the name of a stream, consumer or bucket. (Streams: also STREAM_NAME_MAX.)"""
    return bool(name) and _FORBIDDEN_IN_NAMES.isdisjoint(name)


def is_valid_queue(queue: str) -> bool:
    """Whether it is a valid queue group name."""
    return bool(queue) and _FORBIDDEN.isdisjoint(queue)


def matches(filter_subject: str, subject: str) -> bool:
    """Whether the filter matches the literal subject."""
    if filter_subject == subject:
        return True
    return is_subset(subject, filter_subject)


def overlaps(one: str, other: str) -> bool:
    """Whether some literal subject matches both filters."""
    left, right = one.split("."), other.split(".")
    for a, b in zip(left, right, strict=False):
        if a == ">" or b == ">":
            return True
        if a != b and a != "*" and b != "*":
            return False
    return len(left) == len(right)


def is_subset(subset: str, superset: str) -> bool:
    """Whether `superset` matches everything that `subset` matches."""
    inner, outer = subset.split("."), superset.split(".")
    for a, b in zip(inner, outer, strict=False):
        if b == ">":
            return True
        if a == ">" or (a != b and b != "*"):
            return False
    return len(inner) == len(outer)


def any_overlap(filters: list[str]) -> tuple[str, str] | None:
    """The first two overlapping filters of a list of valid ones, or None. Raises WorkLimitError if too
    many."""
    # Imported here: the client uses this module without the routing kernels.
    from penstock.kernels.routing.filter_trie import overlapping_pair

    pair = overlapping_pair([one.encode() for one in filters])
    return (filters[pair[0]], filters[pair[1]]) if pair is not None else None


def any_subset(filters: list[str]) -> bool:
    """Whether one of these valid filters matches everything that another does. Raises WorkLimitError."""
    from penstock.kernels.routing.filter_trie import any_covered

    return len(filters) > 1 and any_covered([one.encode() for one in filters])


def check_subject(subject: str) -> str:
    """Returns `subject` if it is valid for publishing. Raises InvalidSubjectError."""
    if not is_valid_subject(subject):
        raise InvalidSubjectError(
            f"can not publish to {subject!r}: a subject is tokens between dots, none empty, "
            "without spaces, and without the wildcards * and >"
        )
    return subject


def check_filter(subject: str) -> str:
    """Returns `subject` if it is valid for subscribing. Raises InvalidSubjectError."""
    if not is_valid_filter(subject):
        raise InvalidSubjectError(
            f"can not subscribe to {subject!r}: a filter is tokens between dots, none empty, "
            "without spaces, * as a whole token, > as the last one"
        )
    return subject


def check_name(name: str, what: str) -> str:
    """Returns `name` if it is valid for a `what` (stream, consumer, bucket). Raises InvalidSubjectError."""
    if not is_valid_name(name):
        raise InvalidSubjectError(
            f"{name!r} can not name a {what}: it must not be empty or hold spaces, dots, * > / or \\"
        )
    return name
