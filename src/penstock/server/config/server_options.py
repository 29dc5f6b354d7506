"""Options of a server: frozen, validated once, and the same from flags, nats.conf and Python.

Every field documents its default, bounds, unit and nats.conf directive. `__post_init__` validates, so that an
existing `ServerOptions` is valid; change fields with `msgspec.structs.replace`, which validates again. Errors
are ConfigErrors with option name, value and bounds.

Rejected: one mutable options object filled by several readers, as in the official server. It is unclear when
    such an object is valid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from penstock.errors import ConfigError
from penstock.net.sockets import DEFAULT_HOST, DEFAULT_PORT
from penstock.protocol.subjects import is_valid_subject
from penstock.server.config.cluster_options import PING_INTERVAL_MAX_NS, ClusterOptions
from penstock.server.config.gateway_options import PING_INTERVAL_MAX_NS as GATEWAY_PING_MAX_NS
from penstock.server.config.gateway_options import GatewayOptions
from penstock.server.config.jetstream_options import JetStreamOptions
from penstock.server.config.leaf_options import LeafOptions
from penstock.server.config.option_checks import (
    GLOBAL_ACCOUNT,
    NS,
    SYSTEM_ACCOUNT,
    at_least,
    between,
    host_and_port,
)
from penstock.server.config.tls_options import TlsOptions
from penstock.server.config.web_options import WEB_HOST, WEB_PORT, WebOptions
from penstock.server.config.websocket_options import WebsocketOptions

if TYPE_CHECKING:
    from penstock.routing.imports_exports import AnyExport, AnyImport
    from penstock.routing.mapping import SubjectMapping
    from penstock.routing.permissions import Permissions

# Options of blocks with their own modules are re-exported here, for users of ServerOptions.
__all__ = [
    "GLOBAL_ACCOUNT",
    "LAME_DUCK_MIN_NS",
    "MAX_PAYLOAD_BYTES",
    "SYSTEM_ACCOUNT",
    "AccountJetStream",
    "AccountOptions",
    "CalloutOptions",
    "ClusterOptions",
    "JetStreamOptions",
    "LeafOptions",
    "MessageTrace",
    "ResolverOptions",
    "ServerOptions",
    "TlsOptions",
    "User",
    "WebOptions",
    "WebsocketOptions",
]

MAX_PAYLOAD_BYTES = 64 * 1024 * 1024
LAME_DUCK_MIN_NS = 30 * NS


class User(Struct, frozen=True, kw_only=True):
    """A user of `authorization.users`."""

    name: str
    """Value of `user` in CONNECT. Not empty. Directive `user`."""
    password: str
    """Password in plain text or as bcrypt hash (`$2a$...`). Directive `password`."""
    nkey: bool = False
    """The name is a public nkey, whose owner signs the server's nonce instead of sending a password.
    Directive `nkey` instead of `user` and `password`. Default off."""
    permissions: Permissions | None = None
    """Publish and subscribe permissions. Default None = no restrictions. Directive `permissions`."""
    connection_types: frozenset[str] = frozenset()
    """Allowed connection types: STANDARD, WEBSOCKET. Default: all. Directive `allowed_connection_types`."""
    proxy_required: bool = False
    """The user must connect through a trusted proxy. Default off. `proxy_required`."""
    account: str = GLOBAL_ACCOUNT
    """Account of the user. Default `$G`."""


class AccountJetStream(Struct, frozen=True, kw_only=True):
    """JetStream limits of an account; -1 (default) = the server's limits. Block `jetstream`."""

    max_memory_bytes: int = -1
    """Maximum bytes of its memory streams. `max_memory`, `max_mem`."""
    max_file_bytes: int = -1
    """Maximum bytes of its file streams. `max_store`, `max_file`, `max_disk`."""
    max_streams: int = -1
    """Maximum streams. `max_streams`, `streams`."""
    max_consumers: int = -1
    """Maximum consumers per stream. `max_consumers`, `consumers`."""
    max_ack_pending: int = -1
    """Maximum unacked messages of a consumer. `max_ack_pending`."""
    max_bytes_required: bool = False
    """Whether each stream must have a `max_bytes`. Default off. `max_bytes_required`, `max_bytes`."""
    memory_max_stream_bytes: int = -1
    """Maximum bytes of one memory stream. `memory_max_stream_bytes`, `mem_max_stream_bytes`."""
    file_max_stream_bytes: int = -1
    """Maximum bytes of one file stream. `disk_max_stream_bytes`, `store_max_stream_bytes`."""
    tiers: tuple[tuple[str, AccountJetStream], ...] = ()
    """Limits by replicas of a stream (`R1`, `R3`). If set, the other limits have no effect. Default none.
    (Account JWTs only.)"""


class MessageTrace(Struct, frozen=True, kw_only=True):
    """Traces of messages with a `traceparent` header. Block `msg_trace`."""

    dest: str
    """Subject of the traces. `dest`."""
    sampling: int = 100
    """Percent of sampled messages that are traced, 1..100 (default). `sampling`."""

    def __post_init__(self) -> None:
        if not is_valid_subject(self.dest):
            raise ConfigError(f'Trace destination "{self.dest}" is not valid')
        if not 1 <= self.sampling <= 100:
            raise ConfigError(
                f"Trace destination sampling value {self.sampling} is invalid, needs to be [1..100]"
            )


class AccountOptions(Struct, frozen=True, kw_only=True):
    """An account of `accounts`. Limits: -1 (default) = the server's limits."""

    name: str
    """Name of the account, without spaces; not `$G`."""
    users: tuple[User, ...] = ()
    """Users of the account; their `account` is this one. `users`."""
    mappings: tuple[SubjectMapping, ...] = ()
    """Subject mappings of its clients' publishes. `mappings`, `maps`."""
    jetstream: AccountJetStream | None = None
    """JetStream limits; None (default) = no JetStream in this account. `jetstream`."""
    max_connections: int = -1
    """Maximum simultaneous connections. `limits.max_connections`, `max_conn`."""
    max_subscriptions: int = -1
    """Maximum subscriptions per connection. `limits.max_subscriptions`, `max_subs`."""
    max_payload: int = -1
    """Maximum bytes of a message. `limits.max_payload`, `max_pay`."""
    max_leafnodes: int = -1
    """Maximum simultaneous leaf nodes. `limits.max_leafnodes`, `max_leafs`."""
    exports: tuple[AnyExport, ...] = ()
    """Subjects that other accounts may import. `exports`."""
    trace: MessageTrace | None = None
    """Traces requested by `traceparent`; None (default) = the header has no effect. `msg_trace`,
    `trace_dest`."""
    imports: tuple[AnyImport, ...] = ()
    """Subjects imported from other accounts. `imports`."""

    def __post_init__(self) -> None:
        if self.name == GLOBAL_ACCOUNT:
            raise ConfigError(f'"{self.name}" is a Reserved Account')
        if not self.name or any(c.isspace() for c in self.name):
            raise ConfigError(f'account name "{self.name}" is not valid: it must be one word')
        for user in self.users:
            if user.account != self.name:
                raise ConfigError(f'user "{user.name}" is in account "{user.account}", not "{self.name}"')


class CalloutOptions(Struct, frozen=True, kw_only=True):
    """The auth callout service. `authorization.auth_callout`."""

    issuer: str
    """Public key of the account that signs replies. `issuer`."""
    auth_users: tuple[str, ...]
    """Users of the service itself, exempt from auth callout. At least one. `auth_users`."""
    account: str = GLOBAL_ACCOUNT
    """Account of the service. Default `$G`. `account`."""
    allowed_accounts: tuple[str, ...] = ()
    """Accounts whose configured users the service authenticates; default: all.
    `allowed_accounts`."""
    xkey: str = ""
    """Public curve key of the service, for encrypted requests. Default "" = unencrypted. `xkey`."""

    def __post_init__(self) -> None:
        if not self.auth_users:
            raise ConfigError("Authorization callouts require authorized users to be specified")


class ResolverOptions(Struct, frozen=True, kw_only=True):
    """Storage of account JWTs. `resolver`."""

    type: str = "memory"
    """`memory` (default), `full` (a directory of all accounts) or `cache` (recently used ones)."""
    directory: str = ""
    """Directory for `full` and `cache`. `dir`."""
    limit: int = 0
    """Maximum accounts in the directory; 0 (default) = no limit, for `cache` 1000. `limit`."""
    ttl_ns: int = 0
    """For `cache`: how long to keep a token, ns; 0 (default) = until it expires. `ttl`."""
    interval_ns: int = 0
    """For `full`: how often servers of a cluster compare their tokens; no effect without clustering. Default
    0 = every minute. `interval`."""
    timeout_ns: int = 2 * NS
    """Timeout of requests to other servers. Default 2 s. `timeout`."""
    allow_delete: bool = False
    """For `full`: an operator may delete accounts. Default off. `allow_delete`."""
    hard_delete: bool = False
    """Remove the files of deleted accounts instead of renaming them. Default off. `hard_delete`."""

    def __post_init__(self) -> None:
        if self.type not in ("memory", "full", "cache"):
            raise ConfigError(f'resolver.type is "{self.type}"; it must be FULL, CACHE or MEMORY')
        if self.type == "memory":
            return
        if not self.directory:
            raise ConfigError("dir has no value and needs to point to a directory")
        if self.type == "cache":
            for name in ("interval", "allow_delete", "hard_delete"):
                if getattr(self, "interval_ns" if name == "interval" else name):
                    raise ConfigError(f"CACHE does not accept {'sync' if name == 'interval' else name}")
        elif self.ttl_ns:
            raise ConfigError("FULL does not accept ttl")
        elif self.hard_delete and not self.allow_delete:
            raise ConfigError("hard_delete has no effect without delete")

    @property
    def is_cache(self) -> bool:
        return self.type == "cache"


class ServerOptions(Struct, frozen=True, kw_only=True):
    """All options of a server. Times are ns unless the name says otherwise."""

    host: str = DEFAULT_HOST
    """Address to listen on. Default all IPv4 addresses. `host`, `net` or in `listen`."""
    port: int = DEFAULT_PORT
    """Port for clients, 1..65535; 0 = 4222; -1 = any free port. Default 4222. `port`."""
    server_name: str = ""
    """Name of the server, without spaces. Default: its generated id. `server_name`."""
    server_tags: tuple[str, ...] = ()
    """Lower-case tags, shown in varz and events; requests of the system account select servers by them.
    Default none. `server_tags`."""
    server_metadata: tuple[tuple[str, str], ...] = ()
    """(key, value) pairs, shown in varz and events. Default none. `server_metadata`."""
    client_advertise: str = ""
    """host[:port] for clients instead of the bound address. Default none. `client_advertise`."""
    cluster_name: str = ""
    """Name of the cluster, without spaces; not `_`. Default: a generated name, which gives way to a
    configured one of another server. No effect without `cluster`. `cluster.name`."""
    cluster: ClusterOptions | None = None
    """Links to other servers; None (default) = off. `cluster`."""
    gateway: GatewayOptions | None = None
    """Links to other clusters; None (default) = off. `gateway`."""

    leafnodes: LeafOptions | None = None
    """Leaf nodes of this server, and hubs whose leaf node it is; None (default) = off. `leafnodes`,
    `leaf`."""
    default_js_domains: tuple[tuple[str, str], ...] = ()
    """(account, domain) pairs. An empty domain lets `$JS.API` of the account pass leaf node links, for
    installations without domains. Default none. `default_js_domain`."""

    http_host: str = ""
    """Address of HTTP monitoring. Default: `host`. In `http`."""
    http_port: int = 0
    """Port of HTTP monitoring; 0 (default) = off, -1 = any free port. `http_port`, `monitor_port`, `http`."""
    http_base_path: str = ""
    """Path prefix of the monitoring pages. Default none. `http_base_path`."""
    https_port: int = 0
    """Port of monitoring over TLS, with the certificate of `tls`; excludes `http_port`. 0 (default) = off, -1
    = any free port. `https_port`, `https`."""
    web: WebOptions | None = None
    """The web page, under `/ui/` of the monitoring port; None (default) = off. Without a port of its own,
    monitoring then listens on 127.0.0.1:8222. `web`."""

    max_payload: int = 1024 * 1024
    """Maximum bytes of a message with headers, 1..64 MiB. Default 1 MiB. `max_payload`."""
    max_connections: int = 65536
    """Maximum client connections; 0 or less = no limit. Default 65536. `max_connections`."""
    max_control_line: int = 4096
    """Maximum bytes of a protocol line, 1..64 MiB. Default 4096. `max_control_line`."""
    proxy_protocol: bool = False
    """Accept a PROXY header before the client's bytes. Default off.
    `proxy_protocol`."""
    max_pending: int = 64 * 1024 * 1024
    """Maximum pending bytes of a client before it is a slow consumer, > 0. Default 64 MiB. `max_pending`."""
    max_subscriptions: int = 0
    """Maximum subscriptions of a connection; 0 (default) or less = no limit. `max_subscriptions`."""
    header_support: bool = True
    """Support headers. If off, INFO says so, and a client that sends HPUB is closed. Default on.
    `no_header_support: true` turns it off."""
    disable_sublist_cache: bool = False
    """No effect: the lookup cache is small and always consistent. `disable_sublist_cache`."""
    max_sub_tokens: int = 0
    """Maximum tokens of a subscription's subject, 1..255; 0 (default) = no limit. `max_sub_tokens`."""
    max_closed_clients: int = 0
    """Number of closed connections kept for connz; 0 (default) = 10,000. `max_closed_clients`."""
    ping_interval_ns: int = 120 * NS
    """Idle time after which a connection is pinged, > 0. Default 2 minutes. `ping_interval`."""
    ping_max: int = 2
    """Number of unanswered pings after which a connection is stale, > 0. Default 2. `ping_max`."""
    write_deadline_ns: int = 10 * NS
    """Time in which a socket must take pending bytes, > 0. Default 10 s. `write_deadline`."""
    write_timeout: str = "default"
    """Action on a missed write deadline: "close" (also "default"), or "retry": a new deadline for a client
    that took some bytes. `write_timeout`."""
    fast_producer_stall: bool = True
    """Briefly pause reading from publishers while a receiver of their messages has a large backlog. Default
    on. `no_fast_producer_stall: true` turns it off."""

    user: str = ""
    """The single user of `authorization`. Default none. `authorization.user`."""
    password: str = ""
    """Its password. `authorization.password`."""
    token: str = ""
    """Token for `auth_token` of clients. Excludes `user` and `users`. `authorization.token`."""
    users: tuple[User, ...] = ()
    """Users; excludes `user` and `token`. `authorization.users`."""
    auth_timeout_ns: int = 2 * NS
    """Time limit for CONNECT if authentication is required, > 0. Default 2 s.
    `authorization.timeout`."""
    proxy_required: bool = False
    """The single user, or clients with the token, must connect through a trusted proxy. Default off.
    `authorization.proxy_required`."""
    trusted_proxies: tuple[str, ...] = ()
    """Public keys of proxies that sign the nonce for their clients. Default none.
    `proxies.trusted`, maps of `key`."""
    no_auth_user: str = ""
    """User for clients without credentials; one of `users`. Default none. `no_auth_user`."""

    tls: TlsOptions | None = None
    """TLS of client connections; None (default) = off. `tls`."""
    allow_non_tls: bool = False
    """With `tls`: accept clients without TLS as well. Default off. `allow_non_tls`."""
    websocket: WebsocketOptions | None = None
    """Listener for WebSocket clients; None (default) = off. `websocket`, `ws`."""

    accounts: tuple[AccountOptions, ...] = ()
    """Accounts other than `$G`, with their users; excludes `user` and `token`. Default none. `accounts`."""
    system_account: str = SYSTEM_ACCOUNT
    """The system account; one of `accounts`, or `$SYS` (default). `system_account`."""

    no_system_account: bool = False
    """No system account, and no requests and events below `$SYS`, unless `system_account` names one or
    JetStream is on, which needs it. Default off. `no_system_account`, `no_system`, `no_sys_acc`."""

    auth_callout: CalloutOptions | None = None
    """Auth callout service; None (default) = none. `authorization.auth_callout`."""
    operators: tuple[str, ...] = ()
    """Tokens of trusted operators; excludes all configured users. Default none.
    `operator`, a file or the token."""
    trusted_keys: tuple[str, ...] = ()
    """Public keys of operators, instead of tokens. Default none. `trusted_keys`."""
    resolver: ResolverOptions | None = None
    """Storage of account JWTs; required with `operators`. Default none. `resolver`."""
    resolver_preload: tuple[tuple[str, str], ...] = ()
    """(account, token) pairs preloaded into the resolver. Default none. `resolver_preload`."""
    default_sentinel: str = ""
    """User token (a bearer token) for clients that send none; "" (default) = such clients are refused.
    `default_sentinel`."""
    resolver_pinned_accounts: frozenset[str] = frozenset()
    """If not empty, only these accounts and the system account are accepted. Default: all.
    `resolver_pinned_accounts`."""

    mappings: tuple[SubjectMapping, ...] = ()
    """Subject mappings of client publishes; the first matching source decides. Default none.
    `mappings`, `maps`."""

    debug: bool = False
    """Log debug lines. Default off. `debug`."""
    trace: bool = False
    """Log protocol lines. Default off. `trace`."""
    trace_verbose: bool = False
    """With `trace`: also log messages of the system account. Default off. `trace_verbose` (turns
    `trace` on)."""
    trace_headers: bool = False
    """Log only the headers of messages. Default off. `trace_headers` (turns `trace` on)."""
    max_traced_msg_len: int = 0
    """Maximum bytes of a message in a log line; 0 (default) or less = all. `max_traced_msg_len`."""
    logtime: bool = True
    """Begin log lines with the time. Default on. `logtime`."""
    logtime_utc: bool = False
    """Log UTC instead of local time. Default off. `logtime_utc`."""
    log_format: str = "text"
    """Format of log lines: "text" (default), as the official server, or "json", one object per line with
    time, level, component, connection and text. Not a directive of the official server. `log_format`."""
    log_file: str = ""
    """File to append log lines to. Default: stderr. `log_file`, `logfile`."""
    log_size_limit: int = 0
    """Size in bytes above which the log file is rotated; 0 (default) or less = never.
    `logfile_size_limit`, `log_size_limit`."""
    logfile_max_num: int = 0
    """Number of log files to keep, including the current one; 0 (default) or less = all. `logfile_max_num`,
    `log_max_num`."""
    syslog: bool = False
    """Log to the local syslog, unless there is a log file. Default off. `syslog`."""
    remote_syslog: str = ""
    """Log to a remote syslog (`udp://host:port`, `tcp://host:port`, `unix:///path`), unless there is a log
    file. Default none. `remote_syslog`."""
    pid_file: str = ""
    """File with the process id while the server runs. Default none. `pid_file`, `pidfile`."""
    ports_file_dir: str = ""
    """Directory of `nats-server_<pid>.ports`, a JSON file with the URLs. Default none. `ports_file_dir`."""

    lame_duck_duration_ns: int = 120 * NS
    """Time over which lame duck mode closes connections, >= 30 s. Default 2 minutes. `lame_duck_duration`."""
    lame_duck_grace_period_ns: int = 10 * NS
    """Time between lame duck notice and first close, >= 0. Default 10 s. `lame_duck_grace_period`."""

    jetstream: JetStreamOptions | None = None
    """JetStream options; None (default) = off. `jetstream`."""
    config_file: str = ""
    """Configuration file of these options, for the log. Default none."""

    def __post_init__(self) -> None:
        between("port", self.port, -1, 65535)
        between("http_port", self.http_port, -1, 65535)
        between("https_port", self.https_port, -1, 65535)
        between("max_payload", self.max_payload, 1, MAX_PAYLOAD_BYTES)
        between("max_control_line", self.max_control_line, 1, 64 * 1024 * 1024)
        at_least("max_pending", self.max_pending, 1)
        if self.max_payload > self.max_pending:
            raise ConfigError(
                f"max_payload ({self.max_payload}) cannot be higher than max_pending ({self.max_pending})"
            )
        if self.log_format not in ("text", "json"):
            raise ConfigError(f'log_format is "{self.log_format}"; it must be "text" or "json"')
        at_least("ping_interval", self.ping_interval_ns, 1)
        if self.client_advertise:
            host_and_port("client_advertise", self.client_advertise)
        at_least("ping_max", self.ping_max, 1)
        between("max_sub_tokens", self.max_sub_tokens, 0, 255)
        at_least("max_closed_clients", self.max_closed_clients, 0)
        at_least("write_deadline", self.write_deadline_ns, 1)
        at_least("authorization.timeout", self.auth_timeout_ns, 1)
        at_least("lame_duck_duration", self.lame_duck_duration_ns, LAME_DUCK_MIN_NS)
        at_least("lame_duck_grace_period", self.lame_duck_grace_period_ns, 0)
        if any(c.isspace() for c in self.server_name):
            raise ConfigError(f"server_name is {self.server_name!r}: server name cannot contain spaces")
        if " " in self.cluster_name:
            raise ConfigError(f"cluster.name is {self.cluster_name!r}: cluster name cannot contain spaces")
        if self.cluster_name == "_":
            raise ConfigError("cluster.name is '_': cluster name is reserved")
        self._check_gateway()
        if self.cluster is not None and self.jetstream is not None:
            self._check_replication()
        self._check_monitoring()
        self._check_authorization()

    def _check_replication(self) -> None:
        if not self.server_name:
            raise ConfigError(
                "jetstream cluster requires `server_name` to be set: its streams remember servers by name"
            )
        if not self.name_of_cluster:
            raise ConfigError(
                "jetstream cluster requires `cluster.name` to be set: its servers must agree on it"
            )
        if self.jetstream is not None and self.jetstream.store_dir is None:
            raise ConfigError(
                "jetstream cluster requires `jetstream.store_dir` to be set: its servers keep a log there"
            )
        if not self.has_system_account:
            raise ConfigError("jetstream cluster requires a system account: remove no_system_account")

    def _check_gateway(self) -> None:
        if self.gateway is None:
            return
        if self.cluster_name and self.cluster_name != self.gateway.name:
            raise ConfigError("cluster name conflicts between cluster and gateway definitions")
        if self.jetstream is not None:
            raise ConfigError(
                "jetstream and gateway exclude each other: servers of several clusters would answer every "
                "JetStream request; turn one of them off"
            )

    @property
    def name_of_cluster(self) -> str:
        """The configured name of the cluster, also if only `gateway` has it; "" = none."""
        return self.cluster_name or (self.gateway.name if self.gateway is not None else "")

    def _check_monitoring(self) -> None:
        if self.http_port and self.https_port:
            raise ConfigError(
                f"can't specify both HTTP ({self.http_port}) and HTTPs ({self.https_port}) ports"
            )
        if self.https_port and self.tls is None:
            raise ConfigError("TLS cert and key required for HTTPS: https_port needs the block `tls`")

    def monitoring_address(self) -> tuple[str, int] | None:
        """Host and port of monitoring, 0 = any free port; None = off."""
        port = self.http_port or self.https_port
        if port:
            return self.http_host or self.host, max(0, port)
        return (self.http_host or WEB_HOST, WEB_PORT) if self.web is not None else None

    def all_users(self) -> tuple[User, ...]:
        """The users of all accounts."""
        return (*self.users, *(user for account in self.accounts for user in account.users))

    def account(self, name: str) -> AccountOptions | None:
        """Options of an account; None for `$G` and others that are not in `accounts`."""
        return next((account for account in self.accounts if account.name == name), None)

    @property
    def has_system_account(self) -> bool:
        """Whether there is a system account."""
        named = self.system_account != SYSTEM_ACCOUNT
        return not self.no_system_account or named or self.jetstream is not None

    @property
    def trusts_operators(self) -> bool:
        """Whether users authenticate by JWT."""
        return bool(self.operators or self.trusted_keys)

    def auth_timeout_ns_of(self, kind: str) -> int:
        """Time limit for CONNECT of clients of kind "nats" or "websocket", ns."""
        own = self.websocket.auth_timeout_ns if kind == "websocket" and self.websocket is not None else 0
        return own or self.auth_timeout_ns

    def ping_interval_ns_of(self, kind: str) -> int:
        """Idle time after which clients of this kind are pinged, ns."""
        if kind == "route" and self.cluster is not None:
            return min(self.cluster.ping_interval_ns or self.ping_interval_ns, PING_INTERVAL_MAX_NS)
        if kind == "gateway":
            return min(self.ping_interval_ns, GATEWAY_PING_MAX_NS)
        if kind == "leaf":
            return min(self.ping_interval_ns, PING_INTERVAL_MAX_NS)  # for the level of `s2_auto`
        own = self.websocket.ping_interval_ns if kind == "websocket" and self.websocket is not None else 0
        return own or self.ping_interval_ns

    def ping_max_of(self, kind: str) -> int:
        """Number of unanswered pings after which connections of this kind are stale."""
        return (self.cluster.ping_max if kind == "route" and self.cluster is not None else 0) or self.ping_max

    def jetstream_accounts(self) -> dict[str, AccountJetStream]:
        """JetStream limits by account: of `$G` when there are no other accounts, else of accounts that have
        them."""
        if all(account.name == self.system_account for account in self.accounts):
            return {GLOBAL_ACCOUNT: AccountJetStream()}
        return {account.name: account.jetstream for account in self.accounts if account.jetstream is not None}

    def _check_leafnodes(self) -> None:
        if any(account == self.system_account for account, _ in self.default_js_domains):
            raise ConfigError(f'system account "{self.system_account}" can not be in default_js_domain')
        if self.leafnodes is None:
            return
        if self.trusts_operators:
            if self.leafnodes.users:
                raise ConfigError("operator mode does not allow specifying users in leafnode config")
            if any(not remote.account.startswith("A") for remote in self.leafnodes.remotes):
                raise ConfigError(
                    "operator mode requires account nkeys in remotes. Please add an `account` key to each "
                    "remote in your `leafnodes` section, to assign it to an account"
                )
            return
        known = {account.name for account in self.accounts} | {GLOBAL_ACCOUNT, self.system_account}
        for account, where in self.leafnodes.named_accounts():
            if account not in known:
                raise ConfigError(f'cannot find local account "{account}" specified in leafnode {where}')

    def _check_accounts(self) -> None:
        names = [account.name for account in self.accounts]
        if len(set(names)) < len(names):
            raise ConfigError(f"an account comes twice in accounts: {', '.join(sorted(names))}")
        if self.accounts and self.token:
            raise ConfigError("Can not have a token and accounts")
        if self.accounts and self.user:
            raise ConfigError("Can not have a single user/pass and accounts")
        if self.system_account != SYSTEM_ACCOUNT and self.system_account not in names and not self.operators:
            raise ConfigError(
                f'error resolving system account: account missing: "{self.system_account}" is not in accounts'
            )
        system = self.account(self.system_account)
        if system is not None and system.jetstream is not None:
            raise ConfigError("Not allowed to enable JetStream on the system account")
        if any(account.exports or account.imports for account in self.accounts):
            from penstock.routing.imports_exports import first_error  # most configurations share nothing

            error = first_error({account.name: account for account in self.accounts})
            if error:
                raise ConfigError(error)
            self._check_latencies()

    def _check_latencies(self) -> None:
        """Refuses latency measurements without a configured system account, as the official server does, even
        if JetStream or `system_account` create one."""
        if not self.no_system_account:
            return
        for account in self.accounts:
            for export in account.exports:
                if getattr(export, "latency", None) is not None:
                    what = f'Error adding service latency sampling for "{export.subject}"'
                    raise ConfigError(f"{what}: system account not setup")

    def _check_authorization(self) -> None:
        if self.trusted_proxies:
            from penstock.server.config import proxy_directives  # few servers are behind proxies

            proxy_directives.check(self.trusted_proxies)
        if self.token and self.user:
            raise ConfigError("Cannot have a user/pass and token")
        if self.users and self.user:
            raise ConfigError("Can not have a single user/pass and a users array")
        if self.trusts_operators:
            from penstock.server.config.operator_checks import check  # most servers trust none

            check(self)
        elif self.default_sentinel:
            raise ConfigError("default sentinel requires operators and accounts")
        self._check_leafnodes()
        self._check_accounts()
        if self.users and self.token:
            raise ConfigError("Can not have a token and a users array")
        if self.auth_callout is not None:
            names = {account.name for account in self.accounts}
            for name in self.auth_callout.allowed_accounts:
                if name not in names:
                    raise ConfigError(
                        f'auth_callout allowed account "{name}" not found in configured accounts'
                    )
        seen: set[str] = set()
        for user in self.all_users():
            if not user.name:
                raise ConfigError("a user of authorization.users has no name")
            if user.name in seen:
                raise ConfigError(f'Duplicate user "{user.name}" detected')
            seen.add(user.name)
        if self.no_auth_user and self.no_auth_user not in seen:
            raise ConfigError(
                f'no_auth_user: "{self.no_auth_user}" not present as user in authorization block or account'
            )
        if self.websocket is not None:
            self._check_websocket(self.websocket, seen)

    def _check_websocket(self, websocket: WebsocketOptions, users: set[str]) -> None:
        if websocket.no_auth_user and websocket.no_auth_user not in users:
            raise ConfigError(
                f'websocket no_auth_user: "{websocket.no_auth_user}" not present as user in authorization '
                "block or account configuration"
            )
        if users and (websocket.user or websocket.token):
            raise ConfigError("websocket authentication cannot have a single user/pass or token and users")
