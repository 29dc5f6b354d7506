"""All routes of a server.

Every server of a cluster has a route to every other one (full mesh), so a message needs one hop. A server
learns of the others from its configuration, and from its peers: the first link of a new peer makes a server
tell all its other peers about it (gossip), and they dial.

A route is a pool of links. Link 0 comes first; when the peer has answered a ping on it, and so has accepted
this server, the dialling server opens the next one, until the pool is full. The place of each link is fixed
by the dialling server. Two servers that dial each other at the same time fill one pool together. Each may
register its own link at a place and find the other's link for the same one:
- Two penstock servers keep the link that the server with the lesser id dialled.
- Beside an official server, each closes the link that came second. Both links may end, so the survivor is
  marked to be dialled again, a second later.

Invariants: a peer has at most one link at each place of its pool, and one for each dedicated account. A link
is in the pool exactly while it is registered. Links to a peer without a pool have place 0 and carry all
accounts.

Rejected: to compare ids with official servers, too (they do not, so both links would close more often).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock.cluster import compression
from penstock.cluster.announcements import ClusterInterest, pool_index
from penstock.cluster.mesh_ports import MeshPorts, MeshSettings, address_of
from penstock.cluster.peer_info import NAMELESS
from penstock.cluster.peer_link import Address, LinkState
from penstock.cluster.route_info import RouteConnect, RouteInfo
from penstock.cluster.route_link import PROTOCOL_TRACE, Dial, RouteLink
from penstock.errors import ConfigError
from penstock.net.reasons import CloseReason

if TYPE_CHECKING:
    from penstock.cluster.interests import AccountInterests
    from penstock.routing.account import Account

GOSSIP_DEFAULT, GOSSIP_DISABLED, GOSSIP_OVERRIDE = 0, 1, 2
DIAL_DELAY_S = 1.0
DIAL_DELAY_MAX_S = 30.0
DIAL_LATER_S = 30.0
DIAL_LATER_MAX = 20
DEDICATED_AFTER_S = 2.0
INTRODUCE_AFTER_S = (
    5.0  # longer than two servers that join together take until they are registered everywhere
)
RECONNECT_DELAY_S = 1.0
RECONNECT_JITTER_S = 0.1


class Mesh:
    """The routes of one server.

    Args:
        settings: options; `renew` replaces them.
        ports: what it uses of its server.
        interests: what the accounts of the server announce.
        clock: returns ns since 1970.
        server_id, server_name: identity of this server.
        cluster_name: configured name, or a generated one.
        is_dynamic: whether the name was generated, and may be exchanged for a peer's.
        compares_ids: whether two servers that dial each other keep the link of the lesser id, if the peer
            does so as well; otherwise as beside an official server.
    """

    def __init__(
        self,
        settings: MeshSettings,
        ports: MeshPorts,
        interests: AccountInterests,
        clock: Callable[[], int],
        *,
        server_id: str,
        server_name: str,
        cluster_name: str,
        is_dynamic: bool,
        compares_ids: bool = True,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.server_id = server_id
        self.server_name = server_name
        self.cluster_name = cluster_name
        self.is_dynamic = is_dynamic
        self._compares_ids = compares_ids
        self._ports = ports
        self._pools: dict[str, list[RouteLink | None]] = {}
        self._dedicated: dict[str, dict[str, RouteLink]] = {name: {} for name in settings.pinned_accounts}
        self._links: dict[RouteLink, None] = {}  # all, registered or not
        # ids of peers that joined in the last INTRODUCE_AFTER_S; in order, for simulated runs
        self._recent_peers: dict[str, None] = {}
        self._is_closing = False
        self.rules = ports.rules()
        self.interest = ClusterInterest(
            interests, self.carriers, lambda: None if self.rules is None else self.rules.may_publish
        )

    # -- for the server

    def start(self) -> None:
        """Dials the configured routes."""
        for address in self.settings.routes:
            self._solicit(address)

    def _solicit(self, address: Address) -> None:
        for account in ("", *self._pinned()):
            self._ports.dial(Dial(address=address, is_explicit=True, account=account))

    def _pinned(self) -> Sequence[str]:
        return self.settings.pinned_accounts if self.settings.pool_size >= 0 else ()

    def stop(self) -> None:
        """Closes all links and dials nothing more."""
        self._is_closing = True
        for link in tuple(self._links):
            link.close(CloseReason.SERVER_SHUTDOWN)

    def opened(self, link: RouteLink) -> None:
        """Begins the handshake of a connection that was accepted or dialled."""
        self._links[link] = None
        if self._is_closing:
            link.close(CloseReason.SERVER_SHUTDOWN)
        else:
            link.opened()

    def dial_failed(self, dial: Dial, error: str) -> None:
        """A connection attempt failed. Servers named in the configuration are dialled without end; others
        `connect_retries` times, then every DIAL_LATER_S for ten minutes. The official server gives up
        instead: members that were apart for longer stay apart until one of them restarts."""
        dial.attempts += 1
        if not dial.is_explicit:
            dial.gossip_mode = GOSSIP_OVERRIDE  # others may come until it works; see _forward()
        text = f"Error trying to connect to route (attempt {dial.attempts}) at {dial.address}: {error}"
        (self._ports.log_error if dial.attempts == 1 else self._ports.log_debug)(text)
        delay_s = dial.delay_s or DIAL_DELAY_S
        later = dial.attempts - self.settings.connect_retries
        if not dial.is_explicit and later > DIAL_LATER_MAX:
            return
        if not dial.is_explicit and later > 0:
            delay_s = DIAL_LATER_S
        elif self.settings.connect_backoff:
            dial.delay_s = min(DIAL_DELAY_MAX_S, 2 * delay_s)
        self._ports.call_later(delay_s, lambda: self._dial(dial))

    def _dial(self, dial: Dial) -> None:
        if not self._is_closing and self.is_wanted(dial):
            self._ports.dial(dial)

    def is_wanted(self, dial: Dial) -> bool:
        """Whether the configuration still asks for the dial."""
        if dial.account and dial.account not in self._dedicated:
            return False
        return not dial.is_explicit or any(dial.address == one for one in self.settings.routes)

    def forget(self, account: Account) -> None:
        """The account was removed. Other servers may still have it: their interest waits until it comes back,
        for they announce it once."""
        self.interest.forget(account)
        name = account.name.encode()
        index = self.interest.index_of(name)
        for link in self._links:
            link.ingress.forget_accounts()
            if index is not None:
                link.sink.move_interest(name, index)

    @property
    def links(self) -> list[RouteLink]:
        """The registered links, oldest first."""
        return [link for link in self._links if link.state is LinkState.REGISTERED]

    @property
    def pending(self) -> list[RouteLink]:
        """The links whose handshake is not complete, oldest first."""
        return [link for link in self._links if link.state in (LinkState.GREETING, LinkState.EXPECTING)]

    @property
    def peers(self) -> dict[str, RouteLink]:
        """A link of each peer, by server id."""
        return {remote: link for remote in self._pools if (link := self._first(remote)) is not None}

    def client_urls(self, kind: str = "nats") -> list[str]:
        """The URLs of the other servers for clients of this kind, each once."""
        found: dict[str, None] = {}
        if not self.settings.no_advertise:
            for link in self.peers.values():
                assert link.remote is not None
                if not link.remote.ldm:
                    urls = link.remote.connect_urls if kind == "nats" else link.remote.ws_connect_urls
                    found.update(dict.fromkeys(urls or ()))
        return list(found)

    def lame_duck(self) -> None:
        """Announces to the peers that clients must not connect to this server any more."""
        info = self.info()
        info.ldm = True
        self._send_to_peers(info)

    def _send_to_peers(self, info: RouteInfo) -> None:
        line = info.line()
        for link in self.peers.values():
            link.send(line)

    # -- options

    def rename(self, name: str) -> None:
        """Applies a changed cluster name. All routes reconnect, because the peers compare names at the
        handshake."""
        if name and name != self.cluster_name:
            self.cluster_name, self.is_dynamic = name, False
            self._ports.log_notice(f"Cluster name updated to {name}")
            for link in tuple(self._links):
                link.close(CloseReason.CLUSTER_NAME_CONFLICT)
            self._ports.urls_changed()

    def renew(self, settings: MeshSettings) -> None:
        """Applies changed options to existing routes."""
        before, self.settings = self.settings, settings
        self.rules = self._ports.rules()
        for link in self.links:
            link.renew_permissions()
        if settings.permissions_shown != before.permissions_shown:
            self.interest.restrict()
            line = self.info().line()
            for link in self.links:  # each announces again what it carries
                link.send(line)
        same_pool = (settings.pool_size, settings.compression, settings.rtt_thresholds_ns) == (
            before.pool_size,
            before.compression,
            before.rtt_thresholds_ns,
        )
        if not same_pool:
            self._renew_pool()
        self._renew_accounts(before)
        gone = [address for address in before.routes if address not in settings.routes]
        for link in tuple(self._links):
            if link.is_explicit and link.address in gone:
                link.no_reconnect = True
                link.close(CloseReason.ROUTE_REMOVED)
        for address in settings.routes:
            if address not in before.routes:
                self._solicit(address)
        if settings.no_advertise != before.no_advertise:
            self._send_to_peers(self.info())
            self._ports.urls_changed()

    def _renew_pool(self) -> None:
        """Reconnects all links: pool size and compression are agreed at the handshake."""
        for link in self.links:
            link.close(CloseReason.ROUTE_REMOVED)

    def _renew_accounts(self, before: MeshSettings) -> None:
        """Opens dedicated links for pinned accounts, and closes those of other accounts."""
        wanted = set(self._pinned())
        had = set(before.pinned_accounts if before.pool_size >= 0 else ())
        for name in sorted(had - wanted):
            for link in tuple(self._dedicated.pop(name).values()):
                link.no_reconnect = True
                link.close(CloseReason.ROUTE_REMOVED)
            self.interest.update(name)
        for name in sorted(wanted - had):
            self._dedicated.setdefault(name, {})
            self.interest.update(name)  # retracted from the pool before the dedicated link announces it
            for link in self.peers.values():
                info = self.info(name)
                info.route_acc_add_reqid = f"{self.server_id}.{name}"
                link.send(info.line())
            for address in self.settings.routes:
                self._ports.dial(Dial(address=address, is_explicit=True, account=name))

    def dedicate(self, link: RouteLink, info: RouteInfo) -> None:
        """Handles a peer's request to drop an account's interest in the pool, because the account gets a
        dedicated link; or the peer's answer to such a request."""
        name = info.route_account
        if not name:
            return
        self._dedicated.setdefault(name, {})
        self.interest.update(name)
        for one in self._pools.get(link.remote_id, ()):
            if one is not None and not one.is_poolless:
                one.sink.forget(name.encode())
        info.route_account = ""
        link.send(info.line())

    # -- for links

    def info(self, account: str = "", *, pool_index: int = 0, gossip_mode: int = GOSSIP_DEFAULT) -> RouteInfo:
        """INFO of this server."""
        info, settings = self._ports.base_info(), self.settings
        info.cluster, info.cluster_dynamic = self.cluster_name, self.is_dynamic
        info.proto = PROTOCOL_TRACE
        info.headers = settings.headers
        info.auth_required = bool(settings.user)
        info.lnoc = info.lnocu = info.ln = True
        info.lesser_id_dials = self._compares_ids
        info.route_pool_size = max(0, settings.pool_size)
        info.route_pool_idx, info.route_account, info.gossip_mode = pool_index, account, gossip_mode
        info.import_, info.export = settings.permissions_shown
        if settings.compression != compression.NOT_SUPPORTED:
            info.compression = settings.compression
        if settings.no_advertise:
            info.connect_urls = info.ws_connect_urls = None
        return info

    def connect_line(self, address: Address, *, replication: str = "") -> bytes:
        """CONNECT to a server at this address; replication: see RouteConnect."""
        return RouteConnect(
            user=address.user,
            password=address.password,
            tls_required=self._ports.base_info().tls_required,
            headers=self.settings.headers,
            name=self.server_id,
            cluster=self.cluster_name,
            cluster_dynamic=self.is_dynamic,
            lnoc=True,
            lnocu=True,
            ln=True,
            replication=replication,
        ).line()

    def is_authorized(self, user: str, password: str) -> bool:
        """Whether a server with these credentials may connect."""
        import hmac

        settings = self.settings
        if not settings.user:
            return True
        same_user = hmac.compare_digest(user.encode(), settings.user.encode())
        return hmac.compare_digest(password.encode(), settings.password.encode()) and same_user

    def agree_on_name(self, name: str, *, is_dynamic: bool, remote_id: str) -> bool:
        """Whether this server is, or becomes, a member of the cluster of that name.

        A generated name gives way to a configured one, and to a generated one that is greater. The other
        peers then are in another cluster: their links close, and they learn the new name when they connect
        again.
        """
        if name == self.cluster_name:
            return True
        if name == NAMELESS or not self.is_dynamic or (is_dynamic and name < self.cluster_name):
            return False
        self.cluster_name, self.is_dynamic = name, is_dynamic
        self._ports.log_notice(f"Cluster name updated to {name}")
        for link in tuple(self._links):
            if link.remote_id not in ("", remote_id):
                link.close(CloseReason.CLUSTER_NAME_CONFLICT)
        self._ports.urls_changed()
        return True

    def has_server_named(self, name: str) -> bool:
        """Whether this server has that name. Names must differ, because JetStream knows servers by name."""
        return name == self.server_name

    def register(self, link: RouteLink, info: RouteInfo) -> None:
        """Registers a link whose handshake is complete: gives it its place, or closes it."""
        poolless = info.route_pool_size <= 0 or self.settings.pool_size < 0
        size = max(self.settings.pool_size, info.route_pool_size, 1)
        error = ""
        if poolless and link.account:
            error = (
                f'Not possible to have a dedicated route for account "{link.account}" between those servers'
            )
            link.no_reconnect = True
        elif not poolless and link.did_solicit and info.route_pool_idx:
            error = f"Route pool index should not be set but is set to {info.route_pool_idx}"
        elif not poolless and not link.did_solicit and not 0 <= info.route_pool_idx < size:
            error = f"Invalid route pool index: {info.route_pool_idx} - pool size is {info.route_pool_size}"
        elif link.account and link.account not in self._dedicated:
            error = f'No route for account "{link.account}"'
        if error:
            link.refuse(error, CloseReason.PROTOCOL_VIOLATION)
        elif link.account:
            self._register_dedicated(link, info)
        elif poolless:
            self._register_poolless(link, info)
        else:
            self._register_pooled(link, info, size)

    def _register_dedicated(self, link: RouteLink, info: RouteInfo) -> None:
        links = self._dedicated[link.account]
        other = links.get(info.server_id)
        if other is not None and not self._takes_place(link, other, info):
            self._close_duplicate(other, link, final=True)
            return
        if other is not None:
            self._give_way(other, link)
        links[info.server_id] = link
        self._begin(link, 0)
        if len(links) > 1:
            self._forward(link, info)
            self._repeat_gossip(link, link.account)
        self.interest.update(link.account)

    def _register_poolless(self, link: RouteLink, info: RouteInfo) -> None:
        pool = self._pools.get(info.server_id)
        if pool is not None:
            assert pool[0] is not None
            self._close_duplicate(pool[0], link, final=True)
            return
        link.is_poolless = True
        self._pools[info.server_id] = [link]
        self._begin(link, 0)
        self._first_link(link, info)
        self.interest.update_all()

    def _register_pooled(self, link: RouteLink, info: RouteInfo, size: int) -> None:
        is_new = info.server_id not in self._pools
        pool = self._pools.setdefault(info.server_id, [])
        pool += [None] * (size - len(pool))
        if link.did_solicit:
            for one in pool:
                if one is not None:
                    self._adopt(one, link)
            index = next((i for i, one in enumerate(pool) if one is None), -1)
            if index < 0:
                link.no_reconnect = True
                self._close_duplicate(None, link, final=True)
                return
        else:
            index = info.route_pool_idx
            other = pool[index]
            if other is not None and not self._takes_place(link, other, info):
                self._close_duplicate(other, link, final=False)
                return
            if other is not None:
                self._give_way(other, link)
            solicited = next((one for one in pool if one is not None and one.did_solicit), None)
            if solicited is not None:
                self._adopt(link, solicited)
        pool[index] = link
        self._begin(link, index)
        if is_new:
            self._first_link(link, info)
        elif self._first(info.server_id) is link:
            for account in ("", *self._dedicated):
                self._repeat_gossip(link, account)
            self._tell_clusters(link)
        self.interest.update_all()
        if link.did_solicit and None in pool:
            assert link.address is not None
            link.next_dial = Dial(
                address=link.address,
                is_explicit=link.is_explicit,
                gossip_mode=link.gossip_mode,
                is_first=False,
            )
            link.ping()

    @staticmethod
    def _adopt(link: RouteLink, solicited: RouteLink) -> None:
        """Dials the peer of `link` again as `solicited` was. A configured address wins over one from gossip,
        which the configuration may not know."""
        if not link.did_solicit or (solicited.is_explicit and not link.is_explicit):
            link.address = solicited.address
        link.did_solicit = True
        link.is_explicit |= solicited.is_explicit

    def _takes_place(self, link: RouteLink, other: RouteLink, info: RouteInfo) -> bool:
        """Whether a link replaces the one at its place: two servers dialled each other, and both keep the
        link that the server with the lesser id dialled."""
        if not (self._compares_ids and info.lesser_id_dials) or link.is_dialled == other.is_dialled:
            return False
        return (self.server_id < link.remote_id) == link.is_dialled

    def _give_way(self, other: RouteLink, link: RouteLink) -> None:
        """Closes the link at the place that `link` takes. What the peer sent on it is lost, as if it had been
        closed as the second one; it was registered a moment ago."""
        if other.did_solicit:
            self._adopt(link, other)
        other.no_reconnect = True
        if other.account:
            del self._dedicated[other.account][other.remote_id]
        else:
            self._pools[other.remote_id][other.pool_index] = None
        self.interest.link_closed(other)
        self.log_debug(other, f'Detected duplicate remote route "{other.remote_id}"')
        other.close(CloseReason.DUPLICATE_ROUTE)

    def _close_duplicate(self, other: RouteLink | None, link: RouteLink, *, final: bool) -> None:
        link.no_reconnect |= final
        if other is not None:
            if link.did_solicit:
                self._adopt(other, link)
            other.retry = True  # both servers may have closed the link that the other one kept
        self.log_debug(link, f'Detected duplicate remote route "{link.remote_id}"')
        link.close(CloseReason.DUPLICATE_ROUTE)

    def _begin(self, link: RouteLink, index: int) -> None:
        link.open_gates(index)
        link.send_delayed_info()
        link.wire.registered()
        about = f' for account "{link.account}"' if link.account else ""
        self.log_debug(link, f'Registering remote route "{link.remote_id}"{about}')

    def _first_link(self, link: RouteLink, info: RouteInfo) -> None:
        if len(self._pools) > 1:
            self._forward(link, info)
        self._ports.peer_changed(info.server_id, is_here=True)
        self._recent_peers[info.server_id] = None
        self._ports.call_later(INTRODUCE_AFTER_S, lambda: self._introduce_late(info.server_id))
        if link.did_solicit and not link.is_poolless:
            self._ports.call_later(DEDICATED_AFTER_S, lambda: self._dial_dedicated(info.server_id))
        self._tell_clusters(link)
        if info.connect_urls or info.ws_connect_urls or info.leafnode_urls:
            self._ports.urls_changed()

    def _introduce_late(self, remote_id: str) -> None:
        """Introduces a peer to those that joined at about the same time.

        When two servers join through different members, each may be forwarded before its forwarder knows the
        other, so neither learns of the other. (The official server does not do this, and they stay apart.)
        """
        self._recent_peers.pop(remote_id, None)
        link = self._first(remote_id)
        if self._is_closing or link is None:
            return
        for other_id in self._recent_peers:
            other = self._first(other_id)
            if other is not None and other.remote is not None:
                link.send(msgspec.structs.replace(other.remote, nonce="", gossip_mode=GOSSIP_DEFAULT).line())

    def _dial_dedicated(self, remote_id: str) -> None:
        """Dials the dedicated links that are missing to a peer that this server dialled.

        The server that had dialled them may have restarted, and know this one by its call only.
        """
        link = self._first(remote_id)
        if self._is_closing or link is None or not link.did_solicit or link.address is None:
            return
        for account in self._pinned():
            if remote_id not in self._dedicated[account]:
                self._ports.dial(
                    Dial(address=link.address, is_explicit=link.is_explicit, account=account, is_first=False)
                )

    def _forward(self, link: RouteLink, info: RouteInfo) -> None:
        """Tells the other peers about a new one.

        Without the modes a mesh of n servers would send n * n * n messages: who dialled because of gossip
        does not gossip again, and a server that learns of another from the one that accepted it need not tell
        others. That holds where the mesh is complete. A server that dials again, after a failure or because a
        link was lost, tells the others all the same: servers that came meanwhile know only one side of what
        was apart. (The official server does not, so members stay apart.)
        """
        from_gossip = link.did_solicit and not link.is_explicit
        if (from_gossip and link.gossip_mode != GOSSIP_OVERRIDE) or info.gossip_mode == GOSSIP_DISABLED:
            return
        gossip = msgspec.structs.replace(info, nonce="")
        for remote, one in self._gossip_links(link.account).items():
            if remote == info.server_id or (link.account and one.is_poolless):
                continue
            if (not link.did_solicit and one.is_explicit) or (link.did_solicit and link.is_explicit):
                gossip.gossip_mode = GOSSIP_OVERRIDE
            else:
                gossip.gossip_mode = GOSSIP_DEFAULT if link.did_solicit else GOSSIP_DISABLED
            one.send(gossip.line())

    def _repeat_gossip(self, link: RouteLink, account: str) -> None:
        """Sends a peer the gossip about the others again, on a link that replaces one which may have lost it.
        Peers ignore what they know. (The official server does not do this, and members stay apart.)"""
        others = self._dedicated.get(account, {}) if account else self.peers
        for remote, one in others.items():
            if remote != link.remote_id and one.remote is not None and not (account and link.is_poolless):
                link.send(msgspec.structs.replace(one.remote, nonce="", gossip_mode=GOSSIP_DEFAULT).line())

    def _tell_clusters(self, link: RouteLink) -> None:
        """Tells a peer about other clusters."""
        for line in self._ports.gateway_lines():
            link.send(line)

    def _gossip_links(self, account: str) -> dict[str, RouteLink]:
        return {**self.peers, **self._dedicated.get(account, {})}

    def heard_of(self, info: RouteInfo, link: RouteLink) -> None:
        """Handles gossip about another server: dials it, unless it is connected or configured."""
        if info.server_id == self.server_id or self._is_closing:
            return
        if info.route_account:
            known = self._dedicated.get(info.route_account, {})
            if self.settings.pool_size <= 0 or info.server_id in known:
                return
        elif info.server_id in self._pools:
            return
        try:
            address = address_of(info.ip)
        except ConfigError as error:
            self.log_error(link, f"Error parsing URL from INFO: {error}")
            return
        at = (Address(info.host, info.port), Address(address.host, info.port))
        if any(one.is_same(route) for route in self.settings.routes for one in at):
            return
        if info.auth_required:
            address = address._replace(user=self.settings.user, password=self.settings.password)
        accounts = [info.route_account]
        if link.is_poolless and not info.route_account:
            accounts += self._pinned()
        for account in accounts:
            self._ports.dial(
                Dial(address=address, is_explicit=False, account=account, gossip_mode=info.gossip_mode)
            )

    def heard_of_gateway(self, link: RouteLink, info: RouteInfo) -> None:
        """A peer tells about another cluster."""
        if not self._ports.heard_of_gateway(info):
            text = f'Received information about gateway "{info.gateway}", but gateway is not configured'
            self.log_error(link, text)

    def renewed(self, link: RouteLink, info: RouteInfo) -> None:
        """Handles an update of a peer's INFO: other permissions or client URLs, or its shutdown."""
        first = self._first(link.remote_id)
        for one in dict.fromkeys((first or link, link)):
            assert one.remote is not None
            if info.ldm:
                one.remote.ldm = True
            else:
                one.remote.connect_urls, one.remote.ws_connect_urls = info.connect_urls, info.ws_connect_urls
                accepts_other = one.remote.export != info.export
                one.remote.import_, one.remote.export = info.import_, info.export
                if accepts_other and one is link:
                    self.interest.repeat(link)  # the peer dropped what it did not accept
        self._ports.urls_changed()

    def ponged(self, link: RouteLink) -> None:
        """Opens the next link of the pool: the peer has answered, so it accepted this server."""
        dial, link.next_dial = link.next_dial, None
        if dial is not None and not self._is_closing:
            self._ports.dial(dial)

    def link_closed(self, link: RouteLink, reason: CloseReason) -> None:
        """Handles the end of a link's connection."""
        self._links.pop(link, None)
        was_dedicated = self._dedicated.get(link.account, {})
        if link.account and was_dedicated.get(link.remote_id) is link:
            del was_dedicated[link.remote_id]
        pool = self._pools.get(link.remote_id)
        self.interest.link_closed(link)
        if pool is not None and link in pool:
            pool[link.pool_index] = None
            if not any(pool):
                del self._pools[link.remote_id]
                self._last_link(link)
        if not self._is_closing:
            self._dial_again(link)

    def _last_link(self, link: RouteLink) -> None:
        assert link.remote is not None
        self._ports.peer_changed(link.remote_id, is_here=False)
        if link.remote.connect_urls or link.remote.ws_connect_urls or link.remote.leafnode_urls:
            self._ports.urls_changed()

    def _dial_again(self, link: RouteLink) -> None:
        if link.no_reconnect or link.remote_id == self.server_id or link.address is None:
            return
        if not (link.did_solicit or link.retry):
            return
        if self.settings.pool_size < 1 and not link.account and link.remote_id in self._pools:
            self._adopt_poolless(link)
            return
        address = link.address
        if not link.is_explicit and link.remote is not None and link.remote.auth_required:
            address = address._replace(user=self.settings.user, password=self.settings.password)
        mode = GOSSIP_DEFAULT if link.is_explicit else GOSSIP_OVERRIDE
        dial = Dial(
            address=address, is_explicit=link.is_explicit, account=link.account,
            gossip_mode=mode, is_first=False,
        )  # fmt: skip
        # A peer that refused the link would refuse the next one at once, too.
        waits = link.is_explicit or link.pool_index < 0
        delay_s = self._ports.random() * RECONNECT_JITTER_S + (RECONNECT_DELAY_S if waits else 0)
        self._ports.call_later(delay_s, lambda: self._dial(dial))

    def _adopt_poolless(self, link: RouteLink) -> None:
        other = self._first(link.remote_id)
        if other is not None and link.did_solicit:
            self._adopt(other, link)

    # -- internal

    def _first(self, remote_id: str) -> RouteLink | None:
        return next((link for link in self._pools.get(remote_id, ()) if link is not None), None)

    def carriers(self, account: str) -> Iterator[RouteLink]:
        """The links that carry the account's interest: one for each peer, if there is one."""
        dedicated = self._dedicated.get(account)
        index = pool_index(account, self.settings.pool_size)
        for remote, pool in self._pools.items():
            if pool[0] is not None and pool[0].is_poolless:
                yield pool[0]
            elif dedicated is not None and (remote in dedicated or account in self._pinned()):
                if remote in dedicated:
                    yield dedicated[remote]
            elif index < len(pool) and (link := pool[index]) is not None:
                yield link
        if dedicated is not None:
            yield from (link for remote, link in dedicated.items() if remote not in self._pools)

    def log_error(self, link: RouteLink, text: str) -> None:
        self._ports.log_error(f"{link.shown} - {text}")

    def log_debug(self, link: RouteLink, text: str) -> None:
        self._ports.log_debug(f"{link.shown} - {text}")
