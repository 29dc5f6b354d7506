"""Python interface of the subject grammar."""

def is_literal_subject(subject: bytes) -> bool:
    """May this be published to: non-empty tokens, no wildcards, no whitespace or NUL?"""

def is_valid_filter(f: bytes) -> bool:
    """May this be subscribed to: like a subject, with * as a whole token and > as the whole last token?"""

def has_wildcard(f: bytes) -> bool:
    """Is any token of the filter * or >?"""

def filter_matches(f: bytes, subject: bytes) -> bool:
    """Does the filter match the literal subject?"""

def filters_overlap(a: bytes, b: bytes) -> bool:
    """Is there a subject that both filters match? Raises ValueError for an invalid filter."""

def overlaps_any(filters: list[str], f: str) -> bool:
    """Does one of these filters overlap `f`? The caller has validated all of them."""

def fnv1a_32(tokens: list[bytes]) -> int:
    """The 32-bit FNV-1a hash of these bytes one after the other, which partitions subjects."""

def filter_is_subset(a: bytes, b: bytes) -> bool:
    """Does b match everything that a matches? Raises ValueError for an invalid filter."""
