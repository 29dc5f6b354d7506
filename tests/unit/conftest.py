"""What the unit tests share: nothing of theirs reaches outside of the process."""

from tests.support.no_sockets import nothing_outside

__all__ = ["nothing_outside"]
