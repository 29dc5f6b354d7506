"""Meta groups for tests: a machine with servers, and commands that are encoded and decoded before it applies
them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import structs

from penstock.jetstream import stream_config
from penstock.jetstream.consumer import consumer_config
from penstock.jetstream.limits import EngineConfig
from penstock.jetstream.meta import meta_commands as commands
from penstock.jetstream.meta.assignments import ConsumerAssignment, StreamAssignment
from penstock.jetstream.meta.meta_commands import AccountRules, MetaCommand, PlacementRules, encode_command
from penstock.jetstream.meta.meta_effects import Answered, MetaEffect, Refused, WorkLeft
from penstock.jetstream.meta.meta_machine import MetaMachine
from penstock.protocol.api import (
    AccountLimits,
    ApiConsumerConfig,
    ApiStreamConfig,
    Placement,
    StreamConfigRequest,
)

ENGINE = EngineConfig(is_clustered=True)
TICKET = b"t"
START_NS = 1_800_000_000 * 10**9


def no_limits(**limits: Any) -> AccountRules:
    """Rules of an account without tiers, with these limits."""
    return AccountRules({"": AccountLimits(**limits)})


def stream_config_of(name: str, replicas: int = 3, **fields: Any) -> ApiStreamConfig:
    """A checked configuration. tags, cluster: its placement."""
    tags, cluster = fields.pop("tags", []), fields.pop("cluster", "")
    if tags or cluster:
        fields["placement"] = Placement(tags=tags, cluster=cluster)
    request = StreamConfigRequest(name=name, num_replicas=replicas, **fields)
    return stream_config.checked(request, ENGINE)


def consumer_config_of(stream: ApiStreamConfig, **fields: Any) -> ApiConsumerConfig:
    """A checked configuration."""
    return consumer_config.checked(ApiConsumerConfig(**fields), stream, ENGINE)


class MetaGroup:
    """A machine with servers A, B, .. of cluster "c". Work that is left is done at once, unless `lazy`."""

    def __init__(self, servers: int = 3, *, lazy: bool = False, **fields: Any) -> None:
        self.machine = MetaMachine()
        self.log: list[bytes] = []
        self.now = START_NS
        self.effects: list[MetaEffect] = []
        self._lazy = lazy
        self.apply(commands.FoundCluster("id"))
        for name in "ABCDEFGH"[:servers]:
            self.join(name, **fields)

    def join(self, name: str, **fields: Any) -> None:
        """Adds a server; its id is its name."""
        settings = {"cluster": "c", "disk": "d", "boot": 1, **fields}
        self.apply(commands.SetPeer(name, name.lower(), **settings))

    def see(self, *names: str, online: bool = True, current: bool = True, **used: int) -> None:
        """The meta leader sees these servers so."""
        sights = tuple(commands.PeerSight(name, online, current, **used) for name in names)
        self.apply(commands.ObservePeers(sights))

    def apply(self, command: MetaCommand) -> list[MetaEffect]:
        """Applies a command, and what it leaves to be done."""
        self.now += 1000
        data = encode_command(command, self.now)
        self.log.append(data)
        self.effects = effects = self.machine.apply_entry(data, len(self.log))
        for effect in effects:
            if isinstance(effect, WorkLeft) and not self._lazy:
                self.effects = effects = effects + self.apply(effect.command)
        return effects

    # --- requests --------------------------------------------------------------------------------

    def create(self, name: str, replicas: int = 3, **fields: Any) -> list[MetaEffect]:
        options = self._options(fields)
        config = stream_config_of(name, replicas, **fields)
        return self.apply(commands.CreateStream(config=config, **options))

    def update(self, name: str, **fields: Any) -> list[MetaEffect]:
        """Changes some fields of a stream's configuration."""
        options = self._options(fields)
        present = self.stream(name, options["account"]).config
        tags, cluster = fields.pop("tags", []), fields.pop("cluster", "")
        if tags or cluster:
            fields["placement"] = Placement(tags=tags, cluster=cluster)
        config = structs.replace(present, **fields)
        return self.apply(commands.UpdateStream(config=config, **options))

    def consume(self, stream: str, name: str = "", **fields: Any) -> list[MetaEffect]:
        options = {key: fields.pop(key) for key in ("rules", "action", "from_default") if key in fields}
        settings = {"rules": no_limits(), "ticket": TICKET, **options}
        config = fields.pop("config", None)
        if config is None:
            config = consumer_config_of(self.stream(stream).config, **fields)
        return self.apply(commands.CreateConsumer("$G", stream, name, config, **settings))

    def _options(self, fields: dict[str, Any]) -> dict[str, Any]:
        placement = PlacementRules(
            tuple(fields.pop("clusters", ("c",))), fields.pop("unique_tag", ""), fields.pop("ha_max", 0)
        )
        options = {"account": "$G", "rules": no_limits(), "placement": placement, "ticket": TICKET}
        given = ("account", "rules", "on", "is_restore", "ticket", "sealed")
        return options | {key: fields.pop(key) for key in given if key in fields}

    # --- what there is ---------------------------------------------------------------------------

    def stream(self, name: str, account: str = "$G") -> StreamAssignment:
        return self.machine.tables.stream(account, name)

    def consumer(self, stream: str, name: str) -> ConsumerAssignment:
        return self.machine.tables.consumer("$G", stream, name)

    def peers(self, name: str) -> str:
        """The servers that a stream is to have, sorted."""
        return "".join(sorted(self.stream(name).target))

    def settle(self, name: str, account: str = "$G") -> None:
        """The leader of the stream's group carries out what is desired, and reports it."""
        stream = self.stream(name, account)
        desired = stream.desired
        assert desired is not None
        if desired.shrink_to:
            chosen = desired.peers[: desired.shrink_to]
            self.apply(commands.ChoosePeers(account, name, stream.incarnation, chosen))
        peers = self.stream(name, account).target
        self.apply(commands.SettleMembers(account, name, stream.incarnation, peers, len(self.log)))


def error_of(effects: Iterable[MetaEffect]) -> int:
    """The code that a request was refused with; 0 when it was not."""
    return next((one.error.err_code for one in effects if isinstance(one, Refused)), 0)


def text_of(effects: Iterable[MetaEffect]) -> str:
    return next((one.error.description for one in effects if isinstance(one, Refused)), "")


def is_answered(effects: Iterable[MetaEffect]) -> bool:
    return any(isinstance(one, Answered) and one.ticket == TICKET for one in effects)
