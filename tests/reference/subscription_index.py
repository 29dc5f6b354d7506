"""Who is interested in a subject, by asking every subscription in turn."""

from __future__ import annotations

from dataclasses import dataclass, field

BLANKS = " \t\r\n\f\0"


def is_filter(f: str) -> bool:
    tokens = f.split(".")
    return all(tokens) and not set(f) & set(BLANKS) and ">" not in tokens[:-1]


def is_literal(s: str) -> bool:
    return is_filter(s) and not {"*", ">"} & set(s.split("."))


def matches(f: str, s: str) -> bool:
    """Does a valid filter match the subject, taken literally?"""
    wanted, tokens = f.split("."), s.split(".")
    if not all(tokens):
        return False
    if wanted[-1] == ">":
        wanted = wanted[:-1]
        if len(tokens) <= len(wanted):
            return False
        tokens = tokens[: len(wanted)]
    return len(wanted) == len(tokens) and all(w in ("*", t) for w, t in zip(wanted, tokens, strict=True))


@dataclass
class IndexModel:
    """[(name, filter, queue)] in the order of insertion."""

    members: list[tuple[int, str, str]] = field(default_factory=list)

    def insert(self, name: int, f: str, queue: str) -> None:
        self.members.append((name, f, queue))

    def remove(self, name: int) -> None:
        self.members = [member for member in self.members if member[0] != name]

    def match(self, subject: str) -> tuple[set[int], dict[str, set[int]]]:
        """Names of plain subscriptions, and of the members of each queue group."""
        plain: set[int] = set()
        groups: dict[str, set[int]] = {}
        for name, f, queue in self.members:
            if matches(f, subject):
                if queue:
                    groups.setdefault(queue, set()).add(name)
                else:
                    plain.add(name)
        return plain, groups
