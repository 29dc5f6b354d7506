"""Takes streams that this server stored without a cluster into the cluster: one server with data becomes a
member.

The meta state decides: the stream is assigned to this server alone, as it is, unless the cluster has another
one of its name or with its subjects. StreamSupervisor then begins its group with what is in its files. Until
the group is on disk nothing of the stream changes, so that each step may be repeated after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.jetstream.meta.meta_commands import AdoptStream
from penstock.kernels.routing.filter_trie import WorkLimitError

if TYPE_CHECKING:
    from penstock.jetstream.engine import JetStreamEngine
    from penstock.jetstream.meta.meta_tables import MetaTables
    from penstock.jetstream.standalone import StandaloneStream
    from penstock.server.logging.logs import Log
    from penstock.server.replicated.meta_replica import MetaReplica

LOOK_NS = 500_000_000
AGAIN_NS = 5_000_000_000


def obstacle(tables: MetaTables, account: str, one: StandaloneStream, peer: str) -> str | None:
    """Why the cluster cannot take a stream of this server in; "" when it has, None when it may.

    peer: this server.
    """
    name = one.config.name
    present = tables.find_stream(account, name)
    if present is not None:
        if present.adopted == ("", one.created) and peer in present.group.peers:
            return ""
        return f"the cluster has another stream {name!r}: rename one of them, by a backup and a restore"
    with suppress(WorkLimitError):  # the command decides
        if tables.assets(account).claims.collide(name, one.config.subjects):
            return "the cluster has streams with some of its subjects: change those, or remove one of them"
    return None


class StandaloneAdoption:
    """See the module.

    Args:
        engines: those that run, by account.
        monotonic: ns.
    """

    def __init__(
        self,
        engines: Callable[[], Mapping[str, JetStreamEngine]],
        meta: MetaReplica,
        monotonic: Callable[[], int],
        log: Log,
    ) -> None:
        self._engines = engines
        self._meta = meta
        self._monotonic = monotonic
        self._log = log
        self._look_at = 0
        self._asked: dict[tuple[str, str], int] = {}

    def tick(self) -> None:
        """Proposes what may be taken in, and says in `offline` what may not."""
        now = self._monotonic()
        tables = self._meta.tables
        if now < self._look_at or not tables.cluster_id or self._meta.own_peer not in tables.peers:
            return
        self._look_at = now + LOOK_NS
        for account, engine in self._engines().items():
            for name, one in list(engine.table.standalone.items()):
                self._consider(account, engine, name, one, now)

    def _consider(
        self, account: str, engine: JetStreamEngine, name: str, one: StandaloneStream, now: int
    ) -> None:
        why = obstacle(self._meta.tables, account, one, self._meta.own_peer)
        if why:
            text = f"the stream was stored without a cluster, and {why}"
            if engine.offline.get(name) != text:
                engine.offline[name] = text
                self._log.error(f"stream {name!r} of account {account!r} is offline: {text}")
        elif why is None and now >= self._asked.get((account, name), 0):
            self._asked[account, name] = now + AGAIN_NS
            self._log.info(
                f"stream {name!r} of account {account!r} was stored without a cluster: adopting it"
            )
            peer = self._meta.own_peer
            command = AdoptStream(
                account, one.config, one.created, peer, "", one.created, consumers=one.consumers
            )
            self._meta.submit(command)
