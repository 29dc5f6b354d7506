"""Second instances of the simulated server's streams, which follow them command by command.

Each stream is followed from its first command after it was created, restored or recovered. After each tick
both instances must be equal. Nothing is followed once a bit was flipped on the disk: the instance in memory
still has the messages that the disk lost. Nor is a stream in which a power failure left holes that reading
found: until the next start its subjects count the lost messages, which the second instance never had.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.testing.sim.following_replica import FollowingReplica

if TYPE_CHECKING:
    from penstock.jetstream.stream.stream_replica import StreamReplica
    from penstock.testing.sim.simulator import Simulator


class Replicas:
    """The second instances of one simulator's streams, and the sink of all commands."""

    def __init__(self, sim: Simulator) -> None:
        self._sim = sim
        self._following: dict[StreamReplica, FollowingReplica] = {}
        self._behind: dict[StreamReplica, None] = {}
        self.commands = 0

    def record(self, stream: Any, command: bytes) -> None:
        """Takes a command, right before the stream applies it."""
        if self._sim.flipped or self._sim.damaged:
            return
        following = self._following.get(stream)
        if following is None:
            following = self._following[stream] = FollowingReplica(stream, self._sim.now)
        following.commands.append(command)
        self._behind[stream] = None
        self.commands += 1

    def restart(self) -> None:
        """Forgets all of them: the server died."""
        self._following.clear()
        self._behind.clear()

    def look(self) -> None:
        """Compares those that a command changed. Raises Violation when two differ."""
        behind, self._behind = self._behind, {}
        if self._sim.flipped or self._sim.damaged:
            return
        present = self._sim.engine.streams
        for stream in behind:
            if present.get(stream.name) is stream and not stream.log.lost:
                self._following[stream].compare()
