"""Counts of requests to the API of JetStream, as `server watch api requests` shows them.

An account's user gets an audit advisory for each request of the account. The system account of an official
server gets the requests themselves instead, with who sent them in a header.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from penstock.cli.framework.value_texts import number_text
from penstock.cli.reports.server_tables import ServerTable
from penstock.errors import ProtocolError

if TYPE_CHECKING:
    from penstock.client import Msg

_PREFIX = "$JS.API."
_CLIENT_HEADER = "Nats-Request-Info"
# How many tokens name the request; a stream and a consumer follow, or the text of a filter.
_TWO_WORDS = ("STREAM", "CONSUMER", "DIRECT", "META", "SERVER", "ACCOUNT")
_OF_CONSUMERS = ("CONSUMER.INFO", "CONSUMER.CREATE", "CONSUMER.DELETE", "CONSUMER.PAUSE", "CONSUMER.UNPIN")


@dataclass(slots=True)
class _CountedRequests:
    """count: of requests since the beginning. recent: when those of the last `rate_s` came."""

    count: int = 0
    recent: deque[float] = field(default_factory=deque)


class ApiRequests:
    """Counts requests by account, what they ask, stream and consumer.

    account: a pattern of the accounts to count. rate_s: the time that rates are about. consumers: whether
    each consumer of a stream is counted for itself. clock: in seconds.
    """

    SUBJECTS: ClassVar[tuple[str, ...]] = ("$JS.EVENT.ADVISORY.API", f"{_PREFIX}>")

    def __init__(
        self,
        account: re.Pattern[str],
        *,
        rate_s: float,
        consumers: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._account = account
        self._rate_s = rate_s
        self._consumers = consumers
        self._clock = clock
        self._counted: dict[tuple[str, str, str], _CountedRequests] = {}

    def heard(self, message: Msg) -> None:
        """Count an advisory, or a request that the system account imports."""
        if message.subject.startswith(_PREFIX):
            client = message.headers.get(_CLIENT_HEADER) if message.headers else None
            if client:  # a request of this account's own has an advisory
                self.count(str(_decoded(client.encode()).get("acc", "")), message.subject)
            return
        advisory = _decoded(message.data)
        account = str((advisory.get("client") or {}).get("acc", ""))
        self.count(account, str(advisory.get("subject", "")))

    def count(self, account: str, subject: str) -> None:
        """Count a request."""
        request, asset = request_and_asset(subject, consumers=self._consumers)
        if not request or not self._account.search(account):
            return
        counted = self._counted.setdefault((account, request, asset), _CountedRequests())
        counted.count += 1
        counted.recent.append(self._clock())

    def rows(self, *, reverse: bool = False) -> list[dict[str, Any]]:
        """What was counted, most frequent of late first."""
        oldest = self._clock() - self._rate_s
        found = []
        for (account, request, asset), counted in self._counted.items():
            while counted.recent and counted.recent[0] < oldest:
                counted.recent.popleft()
            row = {"request": request, "account": account, "asset": asset, "count": counted.count}
            found.append(row | {"recent": len(counted.recent)})
        names = sorted(found, key=lambda row: (row["request"], row["account"], row["asset"]))
        return sorted(names, key=lambda row: (row["recent"], row["count"]), reverse=not reverse)

    def table(self, rows: Iterable[dict[str, Any]]) -> ServerTable:
        """The rows for people."""
        recent = f"In {self._rate_s:g}s"
        cells: list[tuple[object, ...]] = [
            (row["request"], row["account"], number_text(row["count"]), number_text(row["recent"]),
             row["asset"])
            for row in rows
        ]  # fmt: skip
        columns = ("Request", "Account", "Count", recent, "Asset")
        return ServerTable("Requests to the API of JetStream", columns, cells, f"Count,{recent}")


def request_and_asset(subject: str, *, consumers: bool = True) -> tuple[str, str]:
    """What a request asks, such as `CONSUMER.INFO`, and which stream, or `stream > consumer`, it is about."""
    tokens = subject.removeprefix(_PREFIX).split(".")
    if not subject.startswith(_PREFIX) or not tokens[0]:
        return "", ""
    words = 2 if tokens[0] in _TWO_WORDS else 1
    if tokens[:2] in (["CONSUMER", "MSG"], ["STREAM", "MSG"], ["CONSUMER", "DURABLE"], ["META", "LEADER"]):
        words = 3
    request, names = ".".join(tokens[:words]), tokens[words:]
    of_consumers = request in (*_OF_CONSUMERS, "CONSUMER.MSG.NEXT", "CONSUMER.DURABLE.CREATE")
    if of_consumers and consumers and len(names) > 1:
        return request, f"{names[0]} > {names[1]}"
    return request, names[0] if names else ""


def _decoded(data: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"what the server says of a request is no JSON: {error}") from error
    return found if isinstance(found, dict) else {}
