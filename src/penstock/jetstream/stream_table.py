"""The streams of one account by name, and the subjects that they take."""

from __future__ import annotations

from penstock.jetstream.standalone import StandaloneStream
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.jetstream.subject_claims import SubjectClaims
from penstock.protocol import error_codes as codes


class StreamTable:
    """open: the streams that work. offline: those that failed or could not be opened, and why. claims: the
    subjects of streams and of restores in progress. standalone: those of the offline ones that were stored
    without a cluster, on a server of a cluster, which may take them in. unopened: replicas with files here
    that no group has opened since the start, or that failed and were closed.

    An offline stream keeps its claims: another one with its subjects would keep it from coming back.
    """

    def __init__(self) -> None:
        self.open: dict[str, StreamReplica] = {}
        self.offline: dict[str, str] = {}
        self.standalone: dict[str, StandaloneStream] = {}
        self.unopened: set[str] = set()
        self.claims = SubjectClaims()

    def find(self, name: str) -> StreamReplica:
        """Returns a stream by name. Raises JetStreamApiError 10059, or 10194 when it is offline."""
        stream = self.open.get(name)
        if stream is None:
            if name in self.offline:
                raise codes.STREAM_OFFLINE_REASON.exception(err=self.offline[name], stream=name)
            raise codes.STREAM_NOT_FOUND.exception(stream=name)
        return stream

    def has(self, stream: StreamReplica) -> bool:
        """Whether the stream is open: another one may have its name."""
        return self.open.get(stream.name) is stream
