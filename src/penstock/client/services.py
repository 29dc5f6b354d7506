"""Discovery of services and requests to them (ADR-32), for clients of services.

services = client.services()
async for instance in services.ping("orders"): ...
answer = await services.request("orders.total", b"...")
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from penstock.client.message import HeadersLike, Msg, Payload
from penstock.client.service_records import (
    Record,
    ServiceInfo,
    ServicePing,
    ServiceStats,
    control_subject,
    decode_record,
)
from penstock.errors import MisuseError, NoRespondersError, ServiceError

if TYPE_CHECKING:
    from penstock.client.client import Client

STALL_S = 0.5


class Services:
    """Made by `Client.services`. prefix: of the subjects of PING, INFO and STATS."""

    def __init__(self, client: Client, prefix: str) -> None:
        self._client = client
        self._prefix = prefix

    async def request(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        timeout: float | None = None,
        headers: HeadersLike | None = None,
    ) -> Msg:
        """`Client.request` to an endpoint; raises ServiceError if the service answers with an error."""
        answer = await self._client.request(subject, payload, timeout=timeout, headers=headers)
        error = ServiceError.of(answer.headers, answer.data) if answer.raw[3] else None
        if error is not None:
            raise error
        return answer

    def ping(
        self, name: str = "", id: str = "", *, timeout: float | None = None, stall: float = STALL_S
    ) -> AsyncIterator[ServicePing]:
        """Yield the instances of all services, of those with a name, or the one with name and id.

        Ends `stall` seconds after the latest answer, after `timeout` seconds (default request_timeout), or
        after the answer of the one. Yields nothing if there is no service.

        Raises MisuseError for an id without a name, ProtocolError for an answer that can not be read.
        """
        return self._ask(ServicePing, "PING", name, id, timeout, stall)

    def info(
        self, name: str = "", id: str = "", *, timeout: float | None = None, stall: float = STALL_S
    ) -> AsyncIterator[ServiceInfo]:
        """The same with descriptions and endpoints."""
        return self._ask(ServiceInfo, "INFO", name, id, timeout, stall)

    def stats(
        self, name: str = "", id: str = "", *, timeout: float | None = None, stall: float = STALL_S
    ) -> AsyncIterator[ServiceStats]:
        """The same with counts of requests and errors."""
        return self._ask(ServiceStats, "STATS", name, id, timeout, stall)

    async def _ask(
        self, kind: type[Record], verb: str, name: str, id: str, timeout: float | None, stall: float
    ) -> AsyncIterator[Record]:
        if id and not name:
            raise MisuseError("an instance is addressed by the name of its service and its id")
        subject = control_subject(self._prefix, verb, name, id)
        answers = self._client.request_many(
            subject, timeout=timeout, stall=stall, max_messages=1 if id else None
        )
        try:
            async for answer in answers:
                error = ServiceError.of(answer.headers, answer.data) if answer.raw[3] else None
                if error is not None:
                    raise error
                yield decode_record(kind, answer.data)
        except NoRespondersError:
            return
