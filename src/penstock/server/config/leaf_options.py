"""Leaf node options: the `leafnodes` block."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from msgspec import Struct

from penstock.errors import ConfigError
from penstock.server.config.option_checks import GLOBAL_ACCOUNT, NS, at_least, between, host_and_port

if TYPE_CHECKING:
    from penstock.cluster.leaf_ports import LeafAddress
    from penstock.server.config.tls_options import RemoteTlsOptions, TlsOptions

PING_INTERVAL_MAX_NS = 30 * NS
MIN_VERSION = (2, 8, 0)


class LeafUser(Struct, frozen=True, kw_only=True):
    """A user of `leafnodes.authorization`."""

    name: str
    """Value of `user` in the URL of a remote, or the public nkey. `user`, `nkey`."""
    password: str = ""
    """Password in plain text or as bcrypt hash. `password`."""
    nkey: bool = False
    """The name is a public nkey."""
    account: str = GLOBAL_ACCOUNT
    """Account that the leaf node is bound to. Default `$G`. `account`."""
    proxy_required: bool = False
    """The leaf node must connect through a trusted proxy. Default off. `proxy_required`."""


class LeafProxyOptions(Struct, frozen=True, kw_only=True):
    """The HTTP proxy through which a hub is dialled."""

    url: str
    """`http://host[:port]`, default port 80. `url`."""
    username: str = ""
    """User of the proxy; "" (default) = it asks for none. `username`."""
    password: str = ""
    """Password of the user; both or none. `password`."""
    timeout_ns: int = 0
    """Time limit until the proxy has connected; 0 (default) = that of the remote. `timeout`."""

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"invalid proxy URL: {error}") from error
        if parts.scheme == "https":
            raise ConfigError(
                "proxy URL scheme is https: this server speaks plain HTTP to proxies; give it an http URL "
                "(the hub's `tls` encrypts what passes)"
            )
        if parts.scheme != "http":
            raise ConfigError(f"proxy URL scheme must be http or https, got: {parts.scheme}")
        if not parts.hostname or port == 0:
            raise ConfigError("proxy URL must specify a host")
        if bool(self.username) != bool(self.password):
            raise ConfigError("proxy username and password must both be specified or both be empty")
        at_least("proxy timeout", self.timeout_ns, 0)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or 80


class LeafRemoteOptions(Struct, frozen=True, kw_only=True):
    """One hub that this server dials: an entry of `remotes`."""

    urls: tuple[str, ...] = ()
    """URLs of the hub's servers, `nats-leaf://[user:password@]host[:port]`, or `ws://` or `wss://` with the
    port and path of a WebSocket listener, all alike. At least one. Default port 7422. `url`, `urls`."""
    account: str = GLOBAL_ACCOUNT
    """Account of this server. Default `$G`. `account`, `local`."""
    credentials: str = ""
    """Credentials file: token and seed of the hub's user. Excludes `nkey`. `credentials`, `creds`."""
    nkey: str = ""
    """Seed of the hub's nkey user. `nkey`, `seed`."""
    tls: RemoteTlsOptions | None = None
    """TLS of the connection; None (default) = as the hub asks, with the system's CAs. `tls`."""
    hub: bool = False
    """This server is the hub, though it dials. Default off. `hub`."""
    deny_imports: tuple[str, ...] = ()
    """Subjects that do not come from the hub. Default none. `deny_imports`, `deny_import`."""
    deny_exports: tuple[str, ...] = ()
    """Subjects that do not go to the hub. Default none. `deny_exports`, `deny_export`."""
    no_randomize: bool = False
    """Dial the URLs in their order. Default off: in random order. `no_randomize`, `dont_randomize`."""
    compression: str = "s2_auto"
    """`off`, `not supported`, `accept`, `s2_auto` (default), `s2_fast`, `s2_better`, `s2_best`.
    `compression`."""
    rtt_thresholds_ns: tuple[int, ...] = ()
    """As for `cluster`. `compression.rtt_thresholds`."""
    isolate: bool = False
    """With `hub`: send no interest of other leaf nodes. Default off. `isolate_leafnode_interest`,
    `isolate`."""
    request_isolation: bool = False
    """Ask the hub not to send interest of its other leaf nodes. Default off. `request_isolation`."""
    ws_compression: bool = False
    """Offer compression of the WebSocket, which has no other. Default off. `ws_compression`."""
    disabled: bool = False
    """Do not dial. Default off. `disabled`."""
    ignore_discovered_servers: bool = False
    """Dial the configured URLs only, not those that the hub tells. Default off.
    `ignore_discovered_servers`."""
    first_info_timeout_ns: int = NS
    """Time limit for the hub's first INFO, > 0. Default 1 s. `first_info_timeout`."""
    dial_timeout_ns: int = 0
    """Time limit of a connection attempt; 0 (default) = that of the block. `dial_timeout`."""
    proxy: LeafProxyOptions | None = None
    """HTTP proxy for all URLs; None (default) = none. `proxy`."""

    def __post_init__(self) -> None:
        if not self.urls:
            raise ConfigError("a leafnode remote has no URL; give it `url`")
        if self.credentials and self.nkey:
            raise ConfigError("Remote leafnode can not have both creds and nkey defined")
        if len({one.is_websocket for one in self.addresses}) > 1:
            raise ConfigError(
                f"remote leaf node configuration cannot have a mix of websocket and non-websocket urls: "
                f"{self.shown()}"
            )
        at_least("first_info_timeout", self.first_info_timeout_ns, 1)
        at_least("dial_timeout", self.dial_timeout_ns, 0)
        from penstock.cluster.compression import check_thresholds

        check_thresholds(self.rtt_thresholds_ns)

    @property
    def addresses(self) -> tuple[LeafAddress, ...]:
        """The URLs, parsed. Raises ConfigError."""
        from penstock.cluster.leaf_ports import leaf_address_of

        return tuple(leaf_address_of(url) for url in self.urls)

    @property
    def identity(self) -> tuple[str, ...]:
        """Equal for two options of the same remote: two remotes must differ in it."""
        return (*self.urls, self.account, self.credentials)

    @property
    def handshake(self) -> tuple[object, ...]:
        """What is agreed when a connection begins: a change ends it."""
        return (
            *(self.nkey, self.tls, self.hub, self.deny_imports, self.deny_exports, self.compression),
            *(self.rtt_thresholds_ns, self.isolate, self.request_isolation, self.ws_compression),
            self.proxy,
        )

    def shown(self) -> str:
        """The URLs without passwords, for errors."""
        return ",".join(one.shown() for one in self.addresses)


class LeafOptions(Struct, frozen=True, kw_only=True):
    """The `leafnodes` block."""

    host: str = "0.0.0.0"
    """Address to listen on for leaf nodes. Default all addresses. `host`, `net` or in `listen`."""
    port: int = 0
    """Port for leaf nodes; -1 = any free port; 0 (default) = accept none. `port` or in `listen`."""
    advertise: str = ""
    """host[:port] at which leaf nodes reach this server. Default: its address. `advertise`."""
    no_advertise: bool = False
    """Tell leaf nodes no addresses of this cluster's servers. Default off. `no_advertise`."""
    users: tuple[LeafUser, ...] = ()
    """Users for leaf nodes alone. Default none: those of the server, whose `allowed_connection_types` have
    LEAFNODE or are empty. `authorization`."""
    is_single: bool = False
    """The only user is that of `authorization` itself."""
    account: str = ""
    """Account of leaf nodes without credentials, if the server has no users. Default `$G`.
    `authorization.account`."""
    auth_timeout_ns: int = 2 * NS
    """Time limit for CONNECT of a leaf node, > 0, in addition to that of a TLS handshake. Default 2 s.
    `authorization.timeout`."""
    proxy_required: bool = False
    """Leaf nodes must connect through a trusted proxy. Default off. `authorization.proxy_required`."""
    tls: TlsOptions | None = None
    """TLS of accepted connections; None (default) = off. `tls`."""
    remotes: tuple[LeafRemoteOptions, ...] = ()
    """Hubs that this server dials. Default none. `remotes`."""
    reconnect_ns: int = NS
    """Time before a hub is dialled again, > 0. Default 1 s. `reconnect`."""
    dial_timeout_ns: int = NS
    """Time limit of a connection attempt, > 0. Default 1 s. `dial_timeout`."""
    min_version: str = ""
    """Lowest version of leaf nodes, at least 2.8.0. Default: any. `min_version`."""
    compression: str = "s2_auto"
    """As for remotes, for accepted connections. `compression`."""
    rtt_thresholds_ns: tuple[int, ...] = ()
    """As for `cluster`. `compression.rtt_thresholds`."""
    isolate: bool = False
    """Send leaf nodes no interest of other leaf nodes. Default off. `isolate_leafnode_interest`,
    `isolate`."""
    write_deadline_ns: int = 0
    """Time in which a leaf node must take pending bytes; 0 (default) = the server's. `write_deadline`."""
    write_timeout: str = "default"
    """As for `cluster`. `write_timeout`."""

    def __post_init__(self) -> None:
        between("leafnodes.port", self.port, -1, 65535)
        at_least("leafnodes.authorization.timeout", self.auth_timeout_ns, 1)
        at_least("leafnodes.reconnect", self.reconnect_ns, 1)
        at_least("leafnodes.dial_timeout", self.dial_timeout_ns, 1)
        at_least("leafnodes.write_deadline", self.write_deadline_ns, 0)
        if self.advertise:
            host_and_port("leafnodes.advertise", self.advertise)
        names = [user.name for user in self.users]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f'duplicate user "{name}" detected in leafnode authorization')
        known: set[tuple[str, ...]] = set()
        for remote in self.remotes:
            if remote.identity in known:
                raise ConfigError(f"duplicate remote {remote.shown()}")
            known.add(remote.identity)
        self._check_links()

    def _check_links(self) -> None:
        from penstock.cluster.compression import check_thresholds
        from penstock.cluster.leaf_link import version_of  # few servers have leaf nodes

        check_thresholds(self.rtt_thresholds_ns)
        if self.min_version:
            try:
                version = version_of(self.min_version)
            except ValueError as error:
                raise ConfigError(f"invalid leafnode's minimum version: {self.min_version!r}") from error
            if version < MIN_VERSION:
                raise ConfigError("the minimum version should be at least 2.8.0")

    def named_accounts(self) -> list[tuple[str, str]]:
        """(account, what names it), for accounts that must exist."""
        found = [(user.account, "authorization") for user in self.users]
        if self.account:
            found.append((self.account, "authorization"))
        return found + [(remote.account, "remote") for remote in self.remotes]
