"""What the checkers raise."""

from __future__ import annotations


class Violation(AssertionError):
    """The server broke a promise. `rule` names it, so that a shrunk run can be told to fail alike."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule


def require(holds: bool, rule: str, what: str) -> None:
    """Raises Violation unless it holds. Build `what` lazily where that costs: this is for rare checks."""
    if not holds:
        raise Violation(rule, what)
