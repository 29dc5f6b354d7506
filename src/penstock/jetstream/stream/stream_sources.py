"""The mirror or the sources of a stream, and their positions."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, TypeVar

from penstock.jetstream.stream.source_config import index_name
from penstock.jetstream.stream.source_positions import SourcePositions
from penstock.jetstream.stream.source_state import SourceState
from penstock.protocol.api import ApiStreamConfig

if TYPE_CHECKING:
    from penstock.jetstream.stream.stream_replica import StreamReplica

T = TypeVar("T")

LEFT_MAX = 1000
"""Sources that updates removed, and whose positions are known when they are added again."""


class StreamSources:
    """Those of one stream. states: one for each, or one for its mirror. positions: None without sources, and
    in a group, whose state has them. left: in a group, (source, sequence, identity of the origin) of those
    that updates removed; they may be added again."""

    def __init__(self, stream: StreamReplica) -> None:
        self._stream = stream
        self.states: list[SourceState] = []
        self.positions: SourcePositions | None = None
        self.left: list[tuple[str, int, str]] = []

    def configure(self) -> None:
        """Creates the states of the stream's configuration. Origins that remain keep their position."""
        mirror, sources = self._stream.config.mirror, self._stream.config.sources
        if mirror is not None:
            self.states = self.states or [SourceState(self._stream, mirror, is_mirror=True)]
            return
        present = {state.index_name: state for state in self.states if not state.is_mirror}
        self.states = [SourceState(self._stream, source, is_mirror=False) for source in sources]
        for at, state in enumerate(self.states):
            if state.index_name in present:
                self.states[at] = present[state.index_name]
                self.states[at].reconfigure(state.source)
        if sources and self._stream.group is None:
            self._open_positions()

    def continue_at(self, positions: dict[str, tuple[int, str]], before: list[SourceState]) -> None:
        """Moves the sources that an update added to their positions. before: the states before it."""
        removed = [one for one in before if one not in self.states and not one.is_mirror]
        if self.positions is not None:
            self.positions.leave(removed)
        if self._stream.group is not None:
            present = {one.index_name for one in self.states}
            left = {name: (name, seq, ident) for name, seq, ident in self.left if name not in present}
            left |= {one.index_name: (one.index_name, one.seq, one.ident) for one in removed if one.seq}
            self.left = list(left.values())[-LEFT_MAX:]
        for one in self.states:
            if one not in before and not one.is_mirror and one.index_name in positions:
                one.resume_at(*positions[one.index_name])

    def restore_left(self, left: list[tuple[str, int, str]]) -> None:
        """Takes over the positions of removed sources from another replica."""
        self.left = left

    def resume(self) -> Generator[int, None, None]:
        """Restores the positions after a start. Yields work."""
        if self.positions is not None and self.states:
            yield from self.positions.recover(self.states, self._stream.log)

    def positions_before(self, config: ApiStreamConfig) -> list[tuple[str, int, str]]:
        """Where the sources that an update adds were when the stream had them before. Raises StoreError."""
        present = {one.index_name for one in self.states if not one.is_mirror}
        added = {index_name(source) for source in config.sources} - present
        if not added:
            return []
        if self._stream.group is not None:
            return [one for one in self.left if one[0] in added]
        known = _result(self._open_positions().find(self.states, self._stream.log))
        return [(name, *known[name]) for name in sorted(added) if name in known]

    def _open_positions(self) -> SourcePositions:
        if self.positions is None:
            self.positions = SourcePositions(self._stream.store)
        return self.positions


def _result(steps: Generator[int, None, T]) -> T:
    """The result of steps that run at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
