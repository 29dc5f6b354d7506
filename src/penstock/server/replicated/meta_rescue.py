"""`$JS.API.META.RESCUE`: the meta group goes on without a majority, for five minutes, on the word of an
operator.

Each server that gets the request decides for itself and answers: one that knows a leader refuses. In the five
minutes the operator removes the servers that are lost for good (`SERVER.REMOVE`), so that those that are left
are a majority.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from penstock.protocol import error_codes as codes
from penstock.protocol.api import TYPE_PREFIX, ApiError

if TYPE_CHECKING:
    from penstock.replication.replica_group import ReplicaGroup
    from penstock.server.logging.logs import Log
    from penstock.server.replicated.work_turns import CallLater

RESCUE_NS = 300_000_000_000


class MetaRescueRequest(Struct):
    """Body of META.RESCUE. quorum_needed: how many members decide; 1 to as many as do now."""

    quorum_needed: int = 0


class MetaRescueResponse(Struct, omit_defaults=True, kw_only=True):
    """Its answer, of one server. prev_quorum, new_quorum: how many members decided before, and decide now."""

    type: str = ""
    error: ApiError | None = None
    server: str = ""
    server_id: str = ""
    prev_quorum: int = 0
    new_quorum: int = 0


class MetaRescue:
    """See the module.

    Args:
        server, server_id: of this server.
        group: callable -> the meta group, None without one.
        call_later: calls after so many ns.
        rescued: callable((before, now)) -> tells the system account.
    """

    def __init__(
        self,
        server: str,
        server_id: str,
        group: Callable[[], ReplicaGroup | None],
        call_later: CallLater,
        rescued: Callable[[tuple[int, int]], object],
        log: Log,
    ) -> None:
        self._server, self._server_id = server, server_id
        self._group = group
        self._call_later = call_later
        self._rescued = rescued
        self._log = log
        self._count = 0  # of rescues: the last one's end counts

    def answer(
        self, payload: bytes, decode: Callable[[type[MetaRescueRequest]], MetaRescueRequest]
    ) -> MetaRescueResponse | None:
        """The answer to a request; None: this server has no meta group, and is silent. decode: of its body.

        Raises JetStreamApiError 10025 for a malformed body.
        """
        group = self._group()
        if group is None:
            return None
        if not payload:
            return self._refusal(codes.BAD_REQUEST)
        quorum = decode(MetaRescueRequest).quorum_needed
        before = group.replica.quorum_needed
        problem = group.rescue(quorum)
        if problem is not None:
            return self._refusal(codes.CLUSTER_RESCUE.format(err=problem.value))
        self._count += 1
        count = self._count
        self._call_later(RESCUE_NS, lambda: self._end(group, count))
        self._log.warning(
            f"JetStream meta group: {quorum} of its members decide for 5 minutes, on request; {before} did "
            "before. What members that are away have acknowledged may be lost"
        )
        self._rescued((before, quorum))
        return self._response(prev_quorum=before, new_quorum=quorum)

    def _end(self, group: ReplicaGroup, count: int) -> None:
        if count == self._count:
            group.end_rescue()
            self._log.warning("JetStream meta group: a majority of its members decides again")

    def _refusal(self, error: ApiError) -> MetaRescueResponse:
        return self._response(error=error)

    def _response(
        self, *, error: ApiError | None = None, prev_quorum: int = 0, new_quorum: int = 0
    ) -> MetaRescueResponse:
        return MetaRescueResponse(
            type=f"{TYPE_PREFIX}meta_rescue_response",
            error=error,
            server=self._server,
            server_id=self._server_id,
            prev_quorum=prev_quorum,
            new_quorum=new_quorum,
        )
