"""The exception of the checkers."""

from __future__ import annotations


class Violation(AssertionError):
    """The server broke a promise. `rule` names it, so that shrinking finds runs with the same failure."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule


def require(holds: bool, rule: str, what: str) -> None:
    """Raises Violation unless `holds`. For rare checks, since `what` is built in any case."""
    if not holds:
        raise Violation(rule, what)
