"""All leaf node links of a server: those that it accepts as a hub, and those that it dials as a leaf node.

Each link binds one account of this server to one of the other. What the bound accounts are interested in is
announced in both directions (`kernels/wire/link_interest.pyx`), and JetStream's own subjects stay on their
side (`domains`).

A leaf node that connects again, before this server has noticed that its first connection broke, replaces that
one. Two links between the same two accounts would deliver everything twice.

Loops: a message would go round for ever if servers were leaf nodes of each other in a circle. Each account
has a subject of its own, which is announced over every link, and on. A server that gets its own subject back
closes the link, and waits half a minute before it dials again.

Invariant: a registered link has an account, which knows of it, and the other side knows that account's
interest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from penstock.cluster import compression
from penstock.cluster.domains import Denied, denied
from penstock.cluster.leaf_info import LeafInfo
from penstock.cluster.leaf_link import RETRY_LATER_S, LeafLink, loop_text
from penstock.cluster.leaf_remote import LeafRemote
from penstock.cluster.leaf_rules import LOOP_PREFIX, LeafRules, rules_of_hub, rules_of_leaf, shown_permission
from penstock.cluster.peer_link import LinkState
from penstock.cluster.route_link import PROTOCOL_TRACE
from penstock.net.reasons import CloseReason

if TYPE_CHECKING:
    from penstock.cluster.interests import AccountInterests
    from penstock.cluster.leaf_ports import LeafPorts, LeafSettings, RemoteSettings
    from penstock.routing.account import Account

DUPLICATE = "Duplicate Remote LeafNode Connection"
LOOP_WAIT_S = 1.0


class LeafNodes:
    """The leaf node links of one server.

    Args:
        settings: options; `renew` replaces them.
        ports: what it uses of its server.
        interests: the accounts of the server, and what they announce.
        clock: returns ns since 1970.
        server_id, server_name: identity of this server.
    """

    def __init__(
        self,
        settings: LeafSettings,
        ports: LeafPorts,
        interests: AccountInterests,
        clock: Callable[[], int],
        *,
        server_id: str,
        server_name: str,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.server_id = server_id
        self.server_name = server_name
        self._ports = ports
        self._interests = interests
        self._links: dict[LeafLink, None] = {}  # all, registered or not
        self._loop_subjects: dict[str, bytes] = {}
        self._looped: set[str] = set()  # accounts whose links wait for _end_loop()
        self._is_closing = False
        self.remotes = [LeafRemote(one, ports.random) for one in settings.remotes]

    # -- for the server

    def start(self) -> None:
        """Dials the configured hubs."""
        for remote in self.remotes:
            if not remote.settings.disabled:
                self._dial(remote)

    def stop(self) -> None:
        """Closes all links and dials nothing more."""
        self._is_closing = True
        for link in tuple(self._links):
            link.close(CloseReason.SERVER_SHUTDOWN)

    def opened(self, link: LeafLink) -> None:
        """Begins the handshake of a connection that was accepted or dialled."""
        self._links[link] = None
        remote = link.remote
        if self._is_closing or (remote is not None and remote.is_gone):
            link.close(CloseReason.SERVER_SHUTDOWN if self._is_closing else CloseReason.CLIENT_CLOSED)
            return
        if remote is not None:
            remote.link, remote.attempts = link, 0
        link.opened()

    def dial_failed(self, remote: LeafRemote, error: str) -> None:
        """Handles a failed connection attempt: the next address is tried after a pause, for ever."""
        remote.attempts += 1
        text = (
            f'Error trying to connect as leafnode to remote server "{remote.address}" '
            f"(attempt {remote.attempts}): {error}"
        )
        (self._ports.log_error if remote.attempts == 1 else self._ports.log_debug)(text)
        self._dial_later(remote, self._reconnect_s * (1 + self._ports.random()))

    @property
    def _reconnect_s(self) -> float:
        return self.settings.reconnect_ns / 1e9

    def _dial_later(self, remote: LeafRemote, delay_s: float) -> None:
        self._ports.call_later(delay_s, lambda: self._dial(remote))

    def _dial(self, remote: LeafRemote) -> None:
        if not self._is_closing and not remote.is_gone and remote.link is None:
            self._ports.dial(remote, remote.next_address())

    @property
    def links(self) -> list[LeafLink]:
        """The registered links, oldest first."""
        return [link for link in self._links if link.state is LinkState.REGISTERED]

    def links_of(self, account: str) -> list[LeafLink]:
        """The registered links of an account of this server."""
        return [link for link in self.links if link.account is not None and link.account.name == account]

    def urls_changed(self) -> None:
        """Sends leaf nodes the changed addresses of this server's cluster."""
        for link in self.links:
            if not link.is_spoke:
                link.send(self.info(link).line())

    # -- options

    def renew(self, settings: LeafSettings) -> None:
        """Applies changed options. Links whose handshake would differ begin again."""
        before, self.settings = self.settings, settings
        if (before.compression, before.rtt_thresholds_ns) != (
            settings.compression,
            settings.rtt_thresholds_ns,
        ):
            for link in self.links:
                if link.remote is None:
                    link.close(CloseReason.CLIENT_CLOSED)
        wanted = {one.identity: one for one in settings.remotes}
        for remote in tuple(self.remotes):
            changed = wanted.pop(remote.settings.identity, None)
            if changed is None or changed.disabled or remote.settings.disabled:
                self._remove(remote)
                if changed is not None:
                    self._add(changed)
            elif changed.handshake != remote.settings.handshake:
                remote.settings = changed
                if remote.link is not None:
                    remote.link.close(CloseReason.CLIENT_CLOSED)
            else:
                remote.settings = changed
        for added in wanted.values():
            self._add(added)

    def _add(self, settings: RemoteSettings) -> None:
        remote = LeafRemote(settings, self._ports.random)
        self.remotes.append(remote)
        if settings.disabled:
            remote.is_gone = True
        else:
            self._dial(remote)

    def _remove(self, remote: LeafRemote) -> None:
        self.remotes.remove(remote)
        remote.is_gone = True
        if remote.link is not None:
            remote.link.close(CloseReason.CLIENT_CLOSED)

    def renew_accounts(self) -> None:
        """Announces changed mappings of accounts."""
        for link in self.links:
            assert link.account is not None
            link.ingress.mapper = link.account.mapper
            self._expect(link.account)

    def forget_account(self, account: Account) -> None:
        """Closes the links of an account that was removed."""
        for link in self.links:
            if link.account is account:
                link.close(CloseReason.MISSING_ACCOUNT)
        self._loop_subjects.pop(account.name, None)
        self._interests.forget(account)

    # -- for links

    def info(self, link: LeafLink) -> LeafInfo:
        """INFO of this server on a link."""
        info, settings = self._ports.base_info(), self.settings
        info.cluster = self.cluster_name()
        info.proto = PROTOCOL_TRACE
        info.headers = settings.headers
        info.jetstream, info.domain = settings.has_jetstream, settings.domain
        info.info_on_connect = True
        if link.remote is None:
            info.client_id, info.auth_required = link.cid, True
        if link.mode != compression.NOT_SUPPORTED:
            info.compression = link.mode
        return info

    def connect_line(self, link: LeafLink, remote: LeafRemote, nonce: str) -> bytes:
        """CONNECT to a hub. Raises ConfigError: the credentials are not usable."""
        settings = remote.settings
        connect = self._ports.proof(settings, nonce)
        connect.user, password = remote.user
        if connect.user:
            connect.password = password or ""
            connect.auth_token = connect.user if password is None else ""
        connect.version = self._ports.base_info().version
        connect.server_id, connect.name = self.server_id, self.server_name
        connect.domain, connect.jetstream = self.settings.domain, self.settings.has_jetstream
        connect.is_hub = settings.hub
        connect.cluster = self.cluster_name()
        connect.headers = self.settings.headers
        connect.deny_pub = list(settings.deny_imports) or None
        connect.isolate = settings.request_isolation
        connect.compress_mode = link.compression
        connect.remote_account = settings.account
        connect.protocol = PROTOCOL_TRACE
        return connect.line()

    def cluster_name(self) -> str:
        """The name of this server's cluster. A server without a cluster gives its hubs its own name."""
        return self._ports.cluster_name() or (self.server_name if self.remotes else "")

    def compression_of(self, remote: LeafRemote | None) -> tuple[str, tuple[int, ...]]:
        """(mode, thresholds) of a remote, or of accepted links."""
        one = self.settings if remote is None else remote.settings
        return one.compression, one.rtt_thresholds_ns

    def end_loop_soon(self, account: str) -> None:
        """Opens a circle of servers, unless another of them does so first.

        Each server of the circle notices it on each of its links, and one closed link is enough. So each
        waits for a random time, in which it drops messages, and then closes one link if the circle is still
        closed. A leaf node of two hubs comes first: it passes nothing on between them, so without one of its
        links all still reach each other. (Official servers close at once, and may close every link.)
        """
        if account not in self._looped:
            self._looped.add(account)
            self._ports.call_later(LOOP_WAIT_S * self._ports.random(), lambda: self._end_loop(account))

    def _end_loop(self, account: str, *, has_waited: bool = False) -> None:
        looped = [link for link in self.links_of(account) if link.is_looped]
        hubs = [link for link in looped if link.is_spoke]
        if looped and len(hubs) < 2 and not has_waited:
            delay_s = LOOP_WAIT_S * (1 + self._ports.random())
            self._ports.call_later(delay_s, lambda: self._end_loop(account, has_waited=True))
            return
        self._looped.discard(account)
        if looped:
            (hubs or looped)[-1].end_loop()
        if len(looped) > 1:  # of the same circle, and open as soon as the others know; or of another one
            self.end_loop_soon(account)

    def new_nonce(self) -> str:
        return self._ports.new_id()[:15]

    def register(self, link: LeafLink, name: str) -> None:
        """Binds a link to an account: the other side has proved itself, or has accepted this server."""
        account = self._interests.account(name)
        if account is None:
            self.log_error(link, f"Unable to lookup account {name} for leafnode connection")
            link.close(CloseReason.MISSING_ACCOUNT)
            return
        if not self._ports.has_room(name):
            text = "maximum account active connections exceeded"
            link.refuse(text, CloseReason.MAX_ACCOUNT_CONNECTIONS)
            return
        if link.remote is not None and self._is_leaf_of(link, account):
            link.retry_in(RETRY_LATER_S)
            link.refuse(loop_text(name), CloseReason.PROTOCOL_VIOLATION)
            return
        rules = self._rules(link, account)
        self._replace(link, account)
        link.open_gates(account, rules, self._loop_subject(account))
        if link.remote is None:
            self._answer(link, account)
        self._interests.watch(account)
        self._expect(account)
        isolated = link.is_isolated and not link.is_spoke
        self._interests.local[name].connect_leaf(link.sink, rules.may_announce, isolated)
        link.wire.registered()
        self._ports.joined(link)

    def _is_leaf_of(self, link: LeafLink, account: Account) -> bool:
        """Whether the hub's cluster is a leaf node of this server in the same account."""
        return bool(link.cluster) and any(
            one.cluster == link.cluster and one.remote is None and not one.is_spoke
            for one in self.links_of(account.name)
        )

    def _replace(self, link: LeafLink, account: Account) -> None:
        """Closes an older connection of the same leaf node: it is broken, or configured twice."""
        if link.remote is not None or not link.name or not link.remote_account:
            return
        key = (link.name, link.cluster, link.remote_account)
        for one in self.links_of(account.name):
            if one.remote is None and (one.name, one.cluster, one.remote_account) == key:
                one.refuse(DUPLICATE, CloseReason.DUPLICATE_LEAFNODE)
                self._ports.log_warning(f"{link.shown} - Replacing connection from same server")
                return

    def _answer(self, link: LeafLink, account: Account) -> None:
        info = self.info(link)
        permissions = link.login.permissions if link.login is not None else None
        if permissions is not None and not link.is_spoke:
            info.import_ = shown_permission(permissions.subscribe)
            info.export = shown_permission(permissions.publish)
        info.remote_account = account.name
        info.acc_is_sys = account.name == self.settings.system_account
        info.connect_info = True
        link.send(info.line())

    def _rules(self, link: LeafLink, account: Account) -> LeafRules:
        found = self._denied(link, account)
        if link.remote is None:
            user = link.login.permissions if link.login is not None else None
            return rules_of_hub(user, (*link.denied_by_peer, *found.out), found.both)
        imports, exports = link.hub_lists
        return rules_of_leaf(
            imports,
            exports,
            deny_imports=link.remote.settings.deny_imports,
            deny_exports=link.remote.settings.deny_exports,
            denied_out=found.out,
            denied_both=found.both,
        )

    def _denied(self, link: LeafLink, account: Account) -> Denied:
        settings = self.settings
        if account.name != settings.system_account:
            self._ports.log_notice(
                f"{link.shown} - JetStream using domains: local {quoted(settings.domain)}, "
                f"remote {quoted(link.domain)}"
            )
        return denied(
            account=account.name,
            system_account=settings.system_account,
            domain=settings.domain,
            remote_domain=link.domain,
            has_jetstream=settings.has_jetstream,
            hint=settings.extension_hint,
            defaults=settings.default_domains,
        )

    def renew_rules(self, link: LeafLink) -> None:
        """Applies changed permissions from the hub."""
        assert link.account is not None
        rules = self._rules(link, link.account)
        link.apply(rules)
        self._interests.local[link.account.name].restrict_leaf(link.sink, rules.may_announce)

    def _loop_subject(self, account: Account) -> bytes:
        subject = self._loop_subjects.get(account.name)
        if subject is None:
            subject = LOOP_PREFIX + self._ports.new_id().encode()
            self._loop_subjects[account.name] = subject
        return subject

    def _expect(self, account: Account) -> None:
        """Announces what has no subscription: the subject that detects loops, and sources of mappings."""
        subjects: Iterable[bytes] = (
            self._loop_subject(account),
            *account.mapped_subjects,
            *self._ports.routed_subjects(),
        )
        self._interests.local[account.name].expect_from_leafs(subjects)

    def link_closed(self, link: LeafLink, reason: CloseReason, *, was_registered: bool) -> None:
        """Handles the end of a link's connection."""
        self._links.pop(link, None)
        if was_registered:
            assert link.account is not None
            local = self._interests.local.get(link.account.name)
            if local is not None:
                local.disconnect_leaf(link.sink)
            self._ports.left(link)
        remote = link.remote
        if remote is None:
            return
        remote.link = None
        delay_s, remote.delay_s = remote.delay_s, 0.0
        if not self._is_closing and not remote.is_gone:
            self._dial_later(remote, self._reconnect_s + delay_s)

    def log_error(self, link: LeafLink, text: str) -> None:
        self._ports.log_error(f"{link.shown} - {text}")

    def log_debug(self, link: LeafLink, text: str) -> None:
        self._ports.log_debug(f"{link.shown} - {text}")


def quoted(text: str) -> str:
    return f'"{text}"'
