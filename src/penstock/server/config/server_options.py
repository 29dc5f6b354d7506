"""Options of a server: frozen, validated once, the same whether they come from flags, nats.conf or Python.

Every field says its default, bounds, unit and directive in nats.conf. Validation happens in
`__post_init__`, so an `ServerOptions` that exists is a valid one; whoever changes a field uses
`msgspec.structs.replace`, which validates again. What it refuses is a ConfigError that names the option, the
value and the bounds.

Rejected: one mutable options object filled by several readers (as flags, file and defaults are merged
in the official server): nobody can tell when it has become valid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from penstock.errors import ConfigError
from penstock.net.sockets import DEFAULT_HOST, DEFAULT_PORT
from penstock.protocol.subjects import is_valid_subject
from penstock.server.config.jetstream_options import JetStreamOptions
from penstock.server.config.option_checks import NS, at_least, between, host_and_port
from penstock.server.config.tls_options import TlsOptions
from penstock.server.config.websocket_options import WebsocketOptions

if TYPE_CHECKING:
    from penstock.routing.imports_exports import AnyExport, AnyImport
    from penstock.routing.mapping import SubjectMapping
    from penstock.routing.permissions import Permissions

# Blocks with files of their own are offered here as well: who makes Options in Python finds all they take.
__all__ = [
    "GLOBAL_ACCOUNT",
    "LAME_DUCK_MIN_NS",
    "MAX_PAYLOAD_BYTES",
    "SYSTEM_ACCOUNT",
    "AccountJetStream",
    "AccountOptions",
    "CalloutOptions",
    "JetStreamOptions",
    "MessageTrace",
    "ResolverOptions",
    "ServerOptions",
    "TlsOptions",
    "User",
    "WebsocketOptions",
]

GLOBAL_ACCOUNT = "$G"
SYSTEM_ACCOUNT = "$SYS"
MAX_PAYLOAD_BYTES = 64 * 1024 * 1024
LAME_DUCK_MIN_NS = 30 * NS


class User(Struct, frozen=True, kw_only=True):
    """One user of `authorization.users`."""

    name: str
    """Name the client gives as `user` in CONNECT. Not empty. Directive `user`."""
    password: str
    """Password in plain text, or its bcrypt hash (`$2a$...`). Directive `password`."""
    nkey: bool = False
    """The name is a public nkey, whose owner signs the server's nonce instead of giving a password. Directive
    `nkey` in place of `user` and `password`. Default no."""
    permissions: Permissions | None = None
    """What it may publish and subscribe to. Default None = everything. Directive `permissions`."""
    connection_types: frozenset[str] = frozenset()
    """How it may come in: STANDARD, WEBSOCKET. Default: any way. Directive `allowed_connection_types`."""
    proxy_required: bool = False
    """It must come through a trusted proxy. Default no. `proxy_required`."""
    account: str = GLOBAL_ACCOUNT
    """The account it is in. Default `$G`."""


class AccountJetStream(Struct, frozen=True, kw_only=True):
    """JetStream in an account; limits of -1 (default) = those of the server. Block `jetstream`."""

    max_memory_bytes: int = -1
    """Most bytes of its memory streams. `max_memory`, `max_mem`."""
    max_file_bytes: int = -1
    """Most bytes of its file streams. `max_store`, `max_file`, `max_disk`."""
    max_streams: int = -1
    """Most streams. `max_streams`, `streams`."""
    max_consumers: int = -1
    """Most consumers of a stream. `max_consumers`, `consumers`."""
    max_ack_pending: int = -1
    """Most messages a consumer may have unacked. `max_ack_pending`."""
    max_bytes_required: bool = False
    """Whether each stream must have a `max_bytes`. Default off. `max_bytes_required`, `max_bytes`."""
    memory_max_stream_bytes: int = -1
    """Most bytes of one memory stream. `memory_max_stream_bytes`, `mem_max_stream_bytes`."""
    file_max_stream_bytes: int = -1
    """Most bytes of one file stream. `disk_max_stream_bytes`, `store_max_stream_bytes`."""
    tiers: tuple[tuple[str, AccountJetStream], ...] = ()
    """Limits by a stream's replicas (`R1`, `R3`); where there are some, the others mean nothing. Default
    none. (Account JWTs only.)"""


class MessageTrace(Struct, frozen=True, kw_only=True):
    """Traces of an account's messages that other systems trace as well. Block `msg_trace`."""

    dest: str
    """Where traces are published that a sampled `traceparent` asks for. `dest`."""
    sampling: int = 100
    """Percent of those messages that are traced, 1..100 (default). `sampling`."""

    def __post_init__(self) -> None:
        if not is_valid_subject(self.dest):
            raise ConfigError(f'Trace destination "{self.dest}" is not valid')
        if not 1 <= self.sampling <= 100:
            raise ConfigError(
                f"Trace destination sampling value {self.sampling} is invalid, needs to be [1..100]"
            )


class AccountOptions(Struct, frozen=True, kw_only=True):
    """One account of `accounts`. Limits of -1 (default) = those of the server."""

    name: str
    """Name of the account, no spaces; `$G` is taken."""
    users: tuple[User, ...] = ()
    """Its users, with this account's name in `account`. `users`."""
    mappings: tuple[SubjectMapping, ...] = ()
    """What becomes of the subjects of its clients' publishes. `mappings`, `maps`."""
    jetstream: AccountJetStream | None = None
    """JetStream; None (default) = not in this account. `jetstream`."""
    max_connections: int = -1
    """Most connections of its users at a time. `limits.max_connections`, `max_conn`."""
    max_subscriptions: int = -1
    """Most subscriptions of one of them. `limits.max_subscriptions`, `max_subs`."""
    max_payload: int = -1
    """Most bytes of a message of one of them. `limits.max_payload`, `max_pay`."""
    max_leafnodes: int = -1
    """Most leaf nodes at a time. `limits.max_leafnodes`, `max_leafs`."""
    exports: tuple[AnyExport, ...] = ()
    """What other accounts may import. `exports`."""
    trace: MessageTrace | None = None
    """Traces that a `traceparent` asks for; None (default) = it asks for none. `msg_trace`, `trace_dest`."""
    imports: tuple[AnyImport, ...] = ()
    """What it has from other accounts. `imports`."""

    def __post_init__(self) -> None:
        if self.name == GLOBAL_ACCOUNT:
            raise ConfigError(f'"{self.name}" is a Reserved Account')
        if not self.name or any(c.isspace() for c in self.name):
            raise ConfigError(f'account name "{self.name}" is not valid: it must be one word')
        for user in self.users:
            if user.account != self.name:
                raise ConfigError(f'user "{user.name}" is in account "{user.account}", not "{self.name}"')


class CalloutOptions(Struct, frozen=True, kw_only=True):
    """The service that decides who clients are. `authorization.auth_callout`."""

    issuer: str
    """Public key of the account that must have signed its answers. `issuer`."""
    auth_users: tuple[str, ...]
    """Users the service logs in as; it is not asked about them. At least one. `auth_users`."""
    account: str = GLOBAL_ACCOUNT
    """The account it listens in. Default `$G`. `account`."""
    allowed_accounts: tuple[str, ...] = ()
    """Of the users that are configured, it is asked about those in these accounts; default: about all.
    `allowed_accounts`."""
    xkey: str = ""
    """Public curve key of the service: what the server asks is encrypted for it. Default "" = not. `xkey`."""

    def __post_init__(self) -> None:
        if not self.auth_users:
            raise ConfigError("Authorization callouts require authorized users to be specified")


class ResolverOptions(Struct, frozen=True, kw_only=True):
    """Where the tokens of accounts are kept. `resolver`."""

    type: str = "memory"
    """`memory` (default), `full` (a directory of all accounts) or `cache` (of those asked for lately)."""
    directory: str = ""
    """Directory of `full` and `cache`. `dir`."""
    limit: int = 0
    """Most accounts in the directory; 0 (default) = no limit, of `cache` 1000. `limit`."""
    ttl_ns: int = 0
    """Of `cache`: how long a token is kept, ns; 0 (default) = until it expires. `ttl`."""
    interval_ns: int = 0
    """Of `full`: how often servers of a cluster compare what they have. One that stands alone has nobody to
    compare with. Default 0 = every minute. `interval`."""
    timeout_ns: int = 2 * NS
    """How long other servers are waited for. Default 2 s. `timeout`."""
    allow_delete: bool = False
    """Of `full`: may an operator delete accounts? Default off. `allow_delete`."""
    hard_delete: bool = False
    """Remove the files of deleted accounts, instead of renaming them. Default off. `hard_delete`."""

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
    """Everything a server is told. Times are ns unless the name says otherwise."""

    host: str = DEFAULT_HOST
    """Address to listen on. Default all IPv4 addresses. `host`, `net` or in `listen`."""
    port: int = DEFAULT_PORT
    """Port for clients, 1..65535; 0 = 4222; -1 = any free port. Default 4222. `port`."""
    server_name: str = ""
    """Name of the server, no spaces. Default: its generated id. `server_name`."""
    server_tags: tuple[str, ...] = ()
    """Words that varz and events show, and by which requests of the system account choose servers; in small
    letters. Default none. `server_tags`."""
    server_metadata: tuple[tuple[str, str], ...] = ()
    """(key, value) that varz and events show. Default none. `server_metadata`."""
    client_advertise: str = ""
    """host[:port] that clients are told instead of the bound address. Default none. `client_advertise`."""
    cluster_name: str = ""
    """Name of the cluster, no spaces. A server stands alone so far, and the name means nothing. Default
    none. `cluster.name`."""

    http_host: str = ""
    """Address of HTTP monitoring. Default: `host`. In `http`."""
    http_port: int = 0
    """Port of HTTP monitoring; 0 (default) = off, -1 = any free port. `http_port`, `monitor_port`, `http`."""
    http_base_path: str = ""
    """Path below which the monitoring pages are. Default none. `http_base_path`."""
    https_port: int = 0
    """Port of monitoring over TLS, with the certificate of `tls`; excludes `http_port`. 0 (default) = off,
    -1 = any free port. `https_port`, `https`."""

    max_payload: int = 1024 * 1024
    """Most bytes of a message (headers included), 1..64 MiB. Default 1 MiB. `max_payload`."""
    max_connections: int = 65536
    """Most client connections at a time; 0 or less = no limit. Default 65536. `max_connections`."""
    max_control_line: int = 4096
    """Most bytes of a protocol line, 1..64 MiB. Default 4096. `max_control_line`."""
    proxy_protocol: bool = False
    """Clients may come through proxies that put a PROXY header before what the client sends. Default off.
    `proxy_protocol`."""
    max_pending: int = 64 * 1024 * 1024
    """Bytes that may wait for one client before it is a slow consumer, > 0. Default 64 MiB. `max_pending`."""
    max_subscriptions: int = 0
    """Most subscriptions of a connection; 0 (default) or less = no limit. `max_subscriptions`."""
    header_support: bool = True
    """Do messages have headers? Without: INFO says so, and a client that sends HPUB is closed. Default yes.
    `no_header_support: true` turns it off."""
    disable_sublist_cache: bool = False
    """Means nothing: what is remembered of lookups is small and always right. `disable_sublist_cache`."""
    max_sub_tokens: int = 0
    """Most tokens of a subscription's subject, 1..255; 0 (default) = no limit. `max_sub_tokens`."""
    max_closed_clients: int = 0
    """How many closed connections connz remembers; 0 (default) = 10,000. `max_closed_clients`."""
    ping_interval_ns: int = 120 * NS
    """How long a connection may be silent before it is pinged, > 0. Default 2 minutes. `ping_interval`."""
    ping_max: int = 2
    """Unanswered pings after which a connection is stale, > 0. Default 2. `ping_max`."""
    write_deadline_ns: int = 10 * NS
    """How long a socket has to take what waits for it, > 0. Default 10 s. `write_deadline`."""
    write_timeout: str = "default"
    """What happens to a client that took less than that: "close", which is also what "default" means, or
    "retry": it is given the time again as long as it takes something. `write_timeout`."""
    fast_producer_stall: bool = True
    """Whether reading from a publisher pauses for moments while a receiver of its messages has a long
    backlog. Default on. `no_fast_producer_stall: true` turns it off."""

    user: str = ""
    """The single user of `authorization`. Default none. `authorization.user`."""
    password: str = ""
    """Its password. `authorization.password`."""
    token: str = ""
    """Token clients must give as `auth_token`. Excludes `user` and `users`. `authorization.token`."""
    users: tuple[User, ...] = ()
    """Users with passwords; excludes `user` and `token`. `authorization.users`."""
    auth_timeout_ns: int = 2 * NS
    """Time a client has for its CONNECT where authentication is required, > 0. Default 2 s.
    `authorization.timeout`."""
    proxy_required: bool = False
    """The single user, or who gives the token, must come through a trusted proxy. Default no.
    `authorization.proxy_required`."""
    trusted_proxies: tuple[str, ...] = ()
    """Public keys of proxies that sign for the clients that come through them. Default none.
    `proxies.trusted`, maps of `key`."""
    no_auth_user: str = ""
    """User whom clients without credentials become; one of `users`. Default none. `no_auth_user`."""

    tls: TlsOptions | None = None
    """TLS of client connections; None (default) = off. `tls`."""
    allow_non_tls: bool = False
    """With `tls`: clients may do without. Default off. `allow_non_tls`."""
    websocket: WebsocketOptions | None = None
    """The listener for WebSocket clients; None (default) = there is none. `websocket`, `ws`."""

    accounts: tuple[AccountOptions, ...] = ()
    """Accounts beside `$G`, with their users; excludes `user` and `token`. Default none. `accounts`."""
    system_account: str = SYSTEM_ACCOUNT
    """The account of the server's own affairs; one of `accounts`, or `$SYS` (default). `system_account`."""

    no_system_account: bool = False
    """There is no system account, and no requests and events below `$SYS`, unless `system_account` names one
    or JetStream is on, which needs it. Default off. `no_system_account`, `no_system`, `no_sys_acc`."""

    auth_callout: CalloutOptions | None = None
    """The service that decides who clients are; None (default) = none. `authorization.auth_callout`."""
    operators: tuple[str, ...] = ()
    """Tokens of the operators whose accounts and users are let in; excludes every other user. Default none.
    `operator`, a file or the token itself."""
    trusted_keys: tuple[str, ...] = ()
    """Public keys of operators, in place of their tokens. Default none. `trusted_keys`."""
    resolver: ResolverOptions | None = None
    """Where the tokens of accounts are; needed with `operators`. Default none. `resolver`."""
    resolver_preload: tuple[tuple[str, str], ...] = ()
    """(account, token) that the resolver begins with. Default none. `resolver_preload`."""
    default_sentinel: str = ""
    """The user's token of clients that show none, a bearer's; "" (default) = they are refused.
    `default_sentinel`."""
    resolver_pinned_accounts: frozenset[str] = frozenset()
    """The only accounts whose users are let in, beside the system account. Default: all.
    `resolver_pinned_accounts`."""

    mappings: tuple[SubjectMapping, ...] = ()
    """What becomes of the subjects of clients' publishes; the first whose source matches decides. Default
    none. `mappings`, `maps`."""

    debug: bool = False
    """Log debugging lines. Default off. `debug`."""
    trace: bool = False
    """Log protocol lines and messages. Default off. `trace`."""
    trace_verbose: bool = False
    """With `trace`: what the server says in the system account, as well. Default off. `trace_verbose` (turns
    `trace` on)."""
    trace_headers: bool = False
    """Of messages, log the headers alone. Default off. `trace_headers` (turns `trace` on)."""
    max_traced_msg_len: int = 0
    """Most bytes of a message in a log line; 0 (default) or less = all. `max_traced_msg_len`."""
    logtime: bool = True
    """Put the time at the head of log lines. Default on. `logtime`."""
    logtime_utc: bool = False
    """That time in UTC instead of local time. Default off. `logtime_utc`."""
    log_format: str = "text"
    """Form of log lines: "text" (default) is the official server's, "json" has an object a line with time,
    level, component, connection and text. This server's own directive. `log_format`."""
    log_file: str = ""
    """File that log lines are appended to. Default: stderr. `log_file`, `logfile`."""
    log_size_limit: int = 0
    """Bytes above which the log file is moved away and a new one begun; 0 (default) or less = never.
    `logfile_size_limit`, `log_size_limit`."""
    logfile_max_num: int = 0
    """Log files that are kept, the open one included; 0 (default) or less = all. `logfile_max_num`,
    `log_max_num`."""
    syslog: bool = False
    """Log to this machine's syslog, unless there is a log file. Default off. `syslog`."""
    remote_syslog: str = ""
    """Log to this syslog (`udp://host:port`, `tcp://host:port`, `unix:///path`), unless there is a log file.
    Default none. `remote_syslog`."""
    pid_file: str = ""
    """File that holds the process id while the server runs. Default none. `pid_file`, `pidfile`."""
    ports_file_dir: str = ""
    """Directory for `nats-server_<pid>.ports`, JSON with the URLs. Default none. `ports_file_dir`."""

    lame_duck_duration_ns: int = 120 * NS
    """Over how long connections close in lame duck mode, >= 30 s. Default 2 minutes. `lame_duck_duration`."""
    lame_duck_grace_period_ns: int = 10 * NS
    """Time between the notice and the first close, >= 0. Default 10 s. `lame_duck_grace_period`."""

    jetstream: JetStreamOptions | None = None
    """JetStream; None (default) = off. `jetstream`."""
    config_file: str = ""
    """The configuration file these options came from, for the log. Default none."""

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
        self._check_monitoring()
        self._check_authorization()

    def _check_monitoring(self) -> None:
        if self.http_port and self.https_port:
            raise ConfigError(
                f"can't specify both HTTP ({self.http_port}) and HTTPs ({self.https_port}) ports"
            )
        if self.https_port and self.tls is None:
            raise ConfigError("TLS cert and key required for HTTPS: https_port needs the block `tls`")

    def all_users(self) -> tuple[User, ...]:
        """The users of all accounts."""
        return (*self.users, *(user for account in self.accounts for user in account.users))

    def account(self, name: str) -> AccountOptions | None:
        """The options of an account; None for `$G` and others that `accounts` doesn't have."""
        return next((account for account in self.accounts if account.name == name), None)

    @property
    def has_system_account(self) -> bool:
        """Does anybody hear of the server's own affairs?"""
        named = self.system_account != SYSTEM_ACCOUNT
        return not self.no_system_account or named or self.jetstream is not None

    @property
    def trusts_operators(self) -> bool:
        """Are users let in by tokens?"""
        return bool(self.operators or self.trusted_keys)

    def jetstream_accounts(self) -> dict[str, AccountJetStream]:
        """Who has JetStream where the server has it: `$G` when it stands alone, else accounts that say so."""
        if all(account.name == self.system_account for account in self.accounts):
            return {GLOBAL_ACCOUNT: AccountJetStream()}
        return {account.name: account.jetstream for account in self.accounts if account.jetstream is not None}

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
        """Without a system account no services are measured, as with the official server; not even where
        JetStream or `system_account` make one."""
        if not self.no_system_account:
            return
        for account in self.accounts:
            for export in account.exports:
                if getattr(export, "latency", None) is not None:
                    what = f'Error adding service latency sampling for "{export.subject}"'
                    raise ConfigError(f"{what}: system account not setup")

    def _check_authorization(self) -> None:
        if self.trusted_proxies:
            from penstock.server.auth import trusted_proxies  # few servers are behind proxies

            trusted_proxies.check(self)
        if self.token and self.user:
            raise ConfigError("Cannot have a user/pass and token")
        if self.users and self.user:
            raise ConfigError("Can not have a single user/pass and a users array")
        if self.trusts_operators:
            from penstock.server.auth.operators import check  # most servers trust none

            check(self)
        elif self.default_sentinel:
            raise ConfigError("default sentinel requires operators and accounts")
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
