"""`did you mean`: the nearest known word to an unknown one."""

from __future__ import annotations

from collections.abc import Iterable


def suggestion(word: str, known: Iterable[str]) -> str:
    """`"; did you mean X?"` for the known word nearest to `word`; empty if none is near."""
    import difflib

    words = list(known)
    near = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    if not near:  # a long prefix, such as `cons` for `consumer`
        near = [one for one in words if len(word.strip("-")) >= 3 and one.startswith(word)][:1]
    return f"; did you mean {near[0]!r}?" if near else ""
