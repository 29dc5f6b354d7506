"""`did you mean`: the nearest known word to an unknown one."""

from __future__ import annotations

from collections.abc import Iterable


def suggestion(word: str, known: Iterable[str]) -> str:
    """`"; did you mean X?"` for the known word nearest to `word`; empty if none is near."""
    import difflib

    # Dashes say nothing about a likeness, and one letter is like too much.
    words = {one.lstrip("-"): one for one in known if len(one.lstrip("-")) > 1}
    bare = word.lstrip("-")
    near = difflib.get_close_matches(bare, words, n=1, cutoff=0.6)
    if not near and len(bare) >= 3:  # a long prefix, such as `cons` for `consumer`
        near = [one for one in words if one.startswith(bare)][:1]
    return f"; did you mean {words[near[0]]!r}?" if near else ""
