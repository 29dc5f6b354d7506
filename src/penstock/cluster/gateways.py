"""All gateway links of a server: between clusters that share one subject space.

Every server keeps one outbound link to each other cluster, to any of its servers, and takes any number of
inbound links. Messages leave on the outbound links; inbound ones get this cluster's interest.

Clusters are found by gossip: a server that another one dials, dials that cluster too, and tells it about the
others that it knows. Within a cluster, routes tell which clusters there are, and the addresses of this one.

Invariants: a remote has one link, or one attempt, or waits for the next attempt. An inbound link has the
interest of every account.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from penstock.cluster.gateway_info import (
    COMMAND_ALL_COMPLETE,
    COMMAND_ALL_START,
    COMMAND_GOSSIP,
    GatewayConnect,
    GatewayInfo,
)
from penstock.cluster.gateway_link import GatewayLink
from penstock.cluster.peer_link import Address, LinkState
from penstock.cluster.route_link import PROTOCOL_TRACE
from penstock.kernels.wire.gateway_links import GatewayReplies
from penstock.net.reasons import CloseReason
from penstock.protocol.hosts import announced_address
from penstock.protocol.ids import short_hash

if TYPE_CHECKING:
    from penstock.cluster.interests import AccountInterests
    from penstock.kernels.routing.subscription_index import SubscriptionIndex
    from penstock.kernels.wire.route_links import RouteSink
    from penstock.routing.account import Account

HASH_LEN = 6
DIAL_DELAY_S = 1.0
DIAL_DELAY_MAX_S = 30.0
DIAL_LATER_S = 30.0
DIAL_LATER_MAX = 20
EXPIRE_S = 1.0
URLS_MAX = 1000
CLUSTERS_MAX = 1000


class GatewayRemoteSettings(Protocol):
    """The options of another cluster; `server.config.gateway_options` documents them."""

    @property
    def name(self) -> str: ...
    @property
    def addresses(self) -> tuple[Address, ...]: ...


class GatewaySettings(Protocol):
    """The options of all gateway links."""

    @property
    def name(self) -> str: ...
    @property
    def user(self) -> str: ...
    @property
    def password(self) -> str: ...
    @property
    def reject_unknown(self) -> bool: ...
    @property
    def connect_retries(self) -> int: ...
    @property
    def connect_backoff(self) -> bool: ...
    @property
    def headers(self) -> bool: ...
    @property
    def remotes(self) -> tuple[GatewayRemoteSettings, ...]: ...


class GatewayPorts(Protocol):
    """What gateway links use of their server."""

    def dial(self, remote: GatewayRemote) -> None:
        """Connects to `remote.address`. `Gateways.opened` or `Gateways.dial_failed` follows."""

    def call_later(self, delay_s: float, work: Callable[[], object]) -> object: ...
    def random(self) -> float:
        """From [0, 1)."""

    def base_info(self) -> GatewayInfo:
        """INFO with what the server knows: identity and address."""

    def accounts(self) -> Iterable[Account]: ...
    def tell_routes(self, line: bytes) -> None:
        """Sends a line to all other servers of the cluster."""

    def route_of(self, account: bytes, server_hash: str) -> tuple[RouteSink, bytes] | None:
        """The route that carries the account to the server of the cluster with this hash, and what its frames
        have before subjects."""

    def has_server_named(self, name: str) -> bool:
        """Whether a server of the cluster has that name."""

    def changed(self) -> None:
        """A link was registered, or is gone."""

    def log_notice(self, text: str) -> None: ...
    def log_error(self, text: str) -> None: ...
    def log_debug(self, text: str) -> None: ...


class GatewayRemote:
    """Another cluster.

    Args:
        name: its name.
        configured: its addresses in the configuration; none = it is known by gossip only.
    """

    def __init__(self, name: str, configured: Iterable[Address]) -> None:
        self.name = name
        self.hash = cluster_hash(name)
        self.configured = tuple(configured)
        self.learnt: dict[Address, None] = {}
        self.address: Address | None = None
        self.link: GatewayLink | None = None
        self.attempts = 0  # failed ones since the last link
        self.delay_s = DIAL_DELAY_S
        self.is_waiting = False  # for an attempt
        self.is_gone = False

    @property
    def is_implicit(self) -> bool:
        """Whether it is known by gossip only."""
        return not self.configured

    @property
    def addresses(self) -> list[Address]:
        """All, each once."""
        return list(dict.fromkeys((*self.configured, *self.learnt)))

    def renew_urls(self, urls: Iterable[str]) -> None:
        """The cluster's servers have these addresses, host:port, and no others."""
        self.learnt.clear()
        self.note_urls(urls)

    def note_urls(self, urls: Iterable[str]) -> None:
        """The cluster's servers have these addresses as well, host:port."""
        for url in urls:
            found = announced_address(url)
            if found is not None and found[1] and len(self.learnt) < URLS_MAX:
                address = Address(*found)
                if not any(address.is_same(one) for one in self.configured):
                    self.learnt[address] = None

    def choose_address(self, random: float) -> Address | None:
        """One to dial, if possible another than the last one."""
        found = self.addresses
        if len(found) > 1:
            found = [one for one in found if one != self.address]
        self.address = found[int(random * len(found))] if found else None
        return self.address


class Gateways:
    """The gateway links of one server.

    Args:
        settings: options; `renew` replaces them.
        ports: what it uses of its server.
        interests: what the accounts announce.
        clock: returns ns since 1970.
        server_id, server_name: identity of this server.
        monotonic_ns: what routed replies expire by, for simulations; None = the system's clock.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        ports: GatewayPorts,
        interests: AccountInterests,
        clock: Callable[[], int],
        *,
        server_id: str,
        server_name: str,
        monotonic_ns: Callable[[], int] | None = None,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.name = settings.name
        self.server_id = server_id
        self.server_name = server_name
        self._ports = ports
        self._interests = interests
        self._links: dict[GatewayLink, None] = {}  # all, registered or not
        self._own_urls: dict[str, str] = {}  # of the other servers of the cluster, by server id
        self._is_closing = False
        self._is_expiring = False
        own = f"_GR_.{cluster_hash(self.name)}.{cluster_hash(server_id)}."
        self.replies = GatewayReplies(own.encode(), self._relay, monotonic_ns)
        self.remotes: dict[str, GatewayRemote] = {}
        for one in settings.remotes:
            if one.name != self.name:
                self.remotes[one.name] = GatewayRemote(one.name, one.addresses)

    # -- for the server

    def start(self) -> None:
        """Dials the configured clusters."""
        for remote in tuple(self.remotes.values()):
            self._dial(remote)

    def stop(self) -> None:
        """Closes all links and dials nothing more."""
        self._is_closing = True
        for link in tuple(self._links):
            link.close(CloseReason.SERVER_SHUTDOWN)

    def opened(self, link: GatewayLink) -> None:
        """A connection was accepted or dialled; its handshake begins."""
        self._links[link] = None
        remote = link.remote
        if self._is_closing or (remote is not None and remote.is_gone):
            link.close(CloseReason.SERVER_SHUTDOWN)
            return
        if remote is not None:
            remote.link = link
        link.opened()

    def dial_failed(self, remote: GatewayRemote, error: str) -> None:
        """A connection attempt failed.

        Configured clusters are dialled for ever. Others are dialled as often as configured, and then every
        DIAL_LATER_S for ten minutes, or as long as they have a link to this server. The official server gives
        up instead: clusters that were apart for longer than the attempts take stay apart.
        """
        remote.attempts += 1
        text = (
            f'Error connecting to {"implicit " if remote.is_implicit else ""}gateway "{remote.name}" at '
            f"{remote.address} (attempt {remote.attempts}): {error}"
        )
        (self._ports.log_error if remote.attempts == 1 else self._ports.log_debug)(text)
        later = remote.attempts - self.settings.connect_retries
        if remote.is_implicit and later > 0 and remote.name not in {link.cluster for link in self.inbound}:
            if later > DIAL_LATER_MAX:
                remote.is_gone = True
                self.remotes.pop(remote.name, None)
            else:
                self._dial_later(remote, DIAL_LATER_S)
            return
        self._dial_later(remote, remote.delay_s)
        if self.settings.connect_backoff:
            remote.delay_s = min(DIAL_DELAY_MAX_S, 2 * remote.delay_s)

    def _dial_later(self, remote: GatewayRemote, delay_s: float) -> None:
        if not remote.is_waiting:
            remote.is_waiting = True
            self._ports.call_later(delay_s * (1 + self._ports.random() / 10), lambda: self._redial(remote))

    def _redial(self, remote: GatewayRemote) -> None:
        remote.is_waiting = False
        self._dial(remote)

    def _dial(self, remote: GatewayRemote) -> None:
        if self._is_closing or remote.is_gone or remote.link is not None or remote.is_waiting:
            return
        if remote.choose_address(self._ports.random()) is not None:
            self._ports.dial(remote)

    @property
    def links(self) -> list[GatewayLink]:
        """The registered links, oldest first."""
        return [link for link in self._links if link.state is LinkState.REGISTERED]

    @property
    def outbound(self) -> list[GatewayLink]:
        """Those that this server dialled."""
        return [link for link in self.links if link.is_outbound]

    @property
    def inbound(self) -> list[GatewayLink]:
        """Those that others dialled."""
        return [link for link in self.links if not link.is_outbound]

    def renew(self, settings: GatewaySettings) -> None:
        """Applies changed options. Clusters that are no longer configured are left."""
        self.settings = settings
        wanted = {one.name: one for one in settings.remotes if one.name != self.name}
        for remote in tuple(self.remotes.values()):
            changed = wanted.pop(remote.name, None)
            if changed is not None:
                remote.configured = tuple(changed.addresses)
            elif not remote.is_implicit:
                remote.is_gone = True
                del self.remotes[remote.name]
                if remote.link is not None:
                    remote.link.close(CloseReason.CLIENT_CLOSED)
        for one in wanted.values():
            self.remotes[one.name] = GatewayRemote(one.name, one.addresses)
            self._dial(self.remotes[one.name])

    # -- accounts

    def watch(self, account: Account) -> None:
        """Announces the subscriptions of a new account."""
        self._interests.watch(account)
        local = self._interests.local[account.name]
        local.note_recent(self.replies.recent_of(account.name.encode()))
        for link in self.inbound:
            self._announce(link, account)
        for link in self.outbound:
            if link.is_optimistic:
                link.sink.assume_interest(account.name.encode(), account.index)

    def forget(self, account: Account) -> None:
        """The account was removed."""
        self._interests.forget(account)
        self.replies.forget_account(account.name.encode())
        for link in self.links:
            link.ingress.forget_accounts()
            link.sink.forget(account.name.encode())

    def index_of(self, name: bytes) -> SubscriptionIndex | None:
        """The index of an account that a peer names; None = unknown."""
        return self._interests.index_of(name)

    def _announce(self, link: GatewayLink, account: Account) -> None:
        """Sends all interest in an account, and every change from now on."""
        name = account.name.encode()
        command = GatewayInfo(gateway=self.name, gateway_cmd=COMMAND_ALL_START, gateway_cmd_payload=name)
        link.send(command.line())
        self._interests.local[account.name].connect_gateway(link.sink)
        command.gateway_cmd = COMMAND_ALL_COMPLETE
        link.send(command.line())

    # -- for links

    def info(self) -> GatewayInfo:
        """INFO of this server."""
        info = self._ports.base_info()
        info.gateway = info.cluster = self.name
        info.gateway_urls = self.own_urls
        info.proto = PROTOCOL_TRACE
        info.headers = self.settings.headers
        info.auth_required = bool(self.settings.user)
        info.gateway_nrp = info.gateway_iom = True
        return info

    @property
    def own_urls(self) -> list[str]:
        """host:port of the servers of this cluster for other clusters, this one's first."""
        return list(dict.fromkeys((self._ports.base_info().gateway_url, *self._own_urls.values())))

    def connect_line(self, address: Address) -> bytes:
        """CONNECT to a server at this address."""
        settings = self.settings
        return GatewayConnect(
            user=address.user or settings.user,
            password=address.password if address.user else settings.password,
            tls_required=self._ports.base_info().tls_required,
            name=self.server_id,
            gateway=self.name,
        ).line()

    def is_authorized(self, user: str, password: str) -> bool:
        """Whether a server with these credentials may connect."""
        settings = self.settings
        if not settings.user:
            return True
        same_user = hmac.compare_digest(user.encode(), settings.user.encode())
        return hmac.compare_digest(password.encode(), settings.password.encode()) and same_user

    def accepts(self, cluster: str) -> bool:
        """Whether servers of that cluster may connect."""
        return not self.settings.reject_unknown or cluster in self.remotes

    def has_server_named(self, name: str) -> bool:
        """Whether a server of this cluster has that name."""
        return name == self.server_name or self._ports.has_server_named(name)

    def register(self, link: GatewayLink, info: GatewayInfo) -> None:
        """The handshake of a link is complete."""
        if link.remote is not None:
            self._register_outbound(link, link.remote)
        else:
            self._ports.log_notice(
                f'{link.shown} - Inbound gateway connection from "{link.cluster}" ({link.remote_id}) '
                "registered"
            )
            for account in self._ports.accounts():
                self._interests.watch(account)
                self._announce(link, account)
            self._gossip(link)
            self.heard_of(link.cluster, info.gateway_urls or ())
        self._ports.changed()
        self._expire_later()

    def _register_outbound(self, link: GatewayLink, remote: GatewayRemote) -> None:
        self._ports.log_notice(
            f'{link.shown} - Outbound gateway connection to "{link.cluster}" ({link.remote_id}) registered'
        )
        remote.attempts, remote.delay_s = 0, DIAL_DELAY_S
        self.replies.joined(remote.hash.encode(), link.sink)
        if link.is_optimistic:
            for account in self._ports.accounts():
                link.sink.assume_interest(account.name.encode(), account.index)
        self.tell_cluster(remote)

    def _expire_later(self) -> None:
        """Forgets routed replies in time, as long as there are links."""
        if not self._is_expiring and not self._is_closing:
            self._is_expiring = True
            self._ports.call_later(EXPIRE_S, self._expire)

    def _expire(self) -> None:
        self._is_expiring = False
        self.replies.expire()
        if self._links or len(self.replies):
            self._expire_later()

    def link_closed(self, link: GatewayLink) -> None:
        """The connection of a link is gone."""
        self._links.pop(link, None)
        remote = link.remote
        if remote is None:
            for local in self._interests.local.values():
                local.disconnect_leaf(link.sink)
        elif remote.link is link or remote.link is None:  # None: it ended before it was open
            remote.link = None
            self.replies.left(remote.hash.encode(), link.sink)
            if not remote.is_gone and not self._is_closing:
                self._dial_later(remote, DIAL_DELAY_S)
        if not self._is_closing:
            self._ports.changed()

    # -- gossip

    def heard_of(self, cluster: str, urls: Iterable[str]) -> None:
        """A cluster exists, and its servers have these addresses: dials it."""
        if cluster in ("", self.name) or self._is_closing:
            return
        remote = self.remotes.get(cluster)
        if remote is None:
            if self.settings.reject_unknown or len(self.remotes) >= CLUSTERS_MAX:
                return
            remote = GatewayRemote(cluster, ())
            remote.note_urls(urls)
            if not remote.learnt:
                return
            self.remotes[cluster] = remote
            self._dial(remote)
        else:
            remote.note_urls(urls)

    def _gossip(self, link: GatewayLink) -> None:
        """Tells a peer about the other clusters."""
        for remote in self.remotes.values():
            if remote.name != link.cluster and (line := self._line_about(remote)):
                link.send(line)

    def _line_about(self, remote: GatewayRemote) -> bytes:
        urls = [str(address) for address in remote.addresses]
        if not urls:
            return b""
        # The id must differ from any server's: it is no gossip about a route.
        return GatewayInfo(
            server_id=f"GW{self.server_id}",
            server_name=self.server_name,
            gateway=remote.name,
            gateway_urls=urls,
            gateway_cmd=COMMAND_GOSSIP,
        ).line()

    def tell_cluster(self, remote: GatewayRemote) -> None:
        """Tells the other servers of this cluster about another one."""
        line = self._line_about(remote)
        if line:
            self._ports.tell_routes(line)

    def lines_for_route(self) -> list[bytes]:
        """What a new server of this cluster must know about other ones."""
        return [
            line
            for link in self.outbound
            if link.remote is not None and (line := self._line_about(link.remote))
        ]

    def peer_joined(self, server_id: str, url: str) -> None:
        """A server of this cluster has this address for other clusters."""
        if url and self._own_urls.get(server_id) != url:
            self._own_urls[server_id] = url
            self._send_info()

    def peer_left(self, server_id: str) -> None:
        """A server of this cluster is gone."""
        if self._own_urls.pop(server_id, None) is not None:
            self._send_info()

    def _send_info(self) -> None:
        line = self.info().line()
        for link in self.inbound:
            link.send(line)

    def _relay(self, account: bytes, server_hash: bytes) -> tuple[RouteSink, bytes] | None:
        return self._ports.route_of(account, server_hash.decode("ascii", "replace"))

    def log_error(self, link: GatewayLink, text: str) -> None:
        self._ports.log_error(f"{link.shown} - {text}")

    def log_debug(self, link: GatewayLink, text: str) -> None:
        self._ports.log_debug(f"{link.shown} - {text}")


def cluster_hash(name: str) -> str:
    """What routed replies call a cluster, or a server by its id: six characters."""
    return short_hash(name)[:HASH_LEN]
