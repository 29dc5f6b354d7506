"""Python interface of the subscriptions that were made a moment ago."""

from collections.abc import Callable

class RecentInterest:
    """The subscriptions of an account that are younger than two seconds. clock -- returns ns, for tests."""

    def __init__(self, clock: Callable[[], int] | None = None) -> None: ...
    def __len__(self) -> int: ...
    def expire(self) -> int:
        """Forgets those that are older."""

    def has(self, subject: bytes) -> bool:
        """Does one of them match the subject?"""

    def add(self, subject: bytes) -> None:
        """Notes a new subscription."""
