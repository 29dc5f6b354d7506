"""The next message of some filters: a look at all of them."""

from __future__ import annotations

from dataclasses import dataclass

from tests.reference.stream_log import LogModel, matches


@dataclass
class FilterCursorModel:
    log: LogModel
    filters: list[bytes]

    def takes(self, subject: bytes) -> bool:
        return any(matches(one, subject) for one in self.filters)

    def from_seq(self, position: int) -> list[int]:
        """Every sequence at or behind `position` whose message matches."""
        return [
            seq for seq in sorted(self.log.live) if seq >= position and self.takes(self.log.live[seq].subject)
        ]
