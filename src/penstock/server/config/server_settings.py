"""Types of the settings of `penstock.Server`, as keyword arguments.

For type checkers only: nothing imports it when a server starts.
"""

from __future__ import annotations

from typing import TypedDict

from penstock.routing.mapping import SubjectMapping
from penstock.server.config.gateway_options import GatewayOptions
from penstock.server.config.server_options import (
    AccountOptions,
    CalloutOptions,
    ClusterOptions,
    LeafOptions,
    ResolverOptions,
    TlsOptions,
    User,
    WebOptions,
    WebsocketOptions,
)


class ServerSettings(TypedDict, total=False):
    """Further keyword arguments of `penstock.Server`; `ServerOptions` documents them."""

    server_name: str
    server_tags: tuple[str, ...]
    server_metadata: tuple[tuple[str, str], ...]
    client_advertise: str
    cluster_name: str
    cluster: ClusterOptions | None
    gateway: GatewayOptions | None
    leafnodes: LeafOptions | None
    default_js_domains: tuple[tuple[str, str], ...]
    http_host: str
    http_port: int
    http_base_path: str
    https_port: int
    web: WebOptions | None
    max_payload: int
    max_connections: int
    max_control_line: int
    proxy_protocol: bool
    max_pending: int
    max_subscriptions: int
    header_support: bool
    disable_sublist_cache: bool
    max_sub_tokens: int
    max_closed_clients: int
    ping_interval_ns: int
    ping_max: int
    write_deadline_ns: int
    write_timeout: str
    fast_producer_stall: bool
    user: str
    password: str
    token: str
    users: tuple[User, ...]
    auth_timeout_ns: int
    proxy_required: bool
    trusted_proxies: tuple[str, ...]
    no_auth_user: str
    tls: TlsOptions | None
    allow_non_tls: bool
    websocket: WebsocketOptions | None
    accounts: tuple[AccountOptions, ...]
    system_account: str
    no_system_account: bool
    auth_callout: CalloutOptions | None
    operators: tuple[str, ...]
    trusted_keys: tuple[str, ...]
    resolver: ResolverOptions | None
    resolver_preload: tuple[tuple[str, str], ...]
    default_sentinel: str
    resolver_pinned_accounts: frozenset[str]
    mappings: tuple[SubjectMapping, ...]
    debug: bool
    trace: bool
    trace_verbose: bool
    trace_headers: bool
    max_traced_msg_len: int
    logtime: bool
    logtime_utc: bool
    log_format: str
    log_file: str
    log_size_limit: int
    logfile_max_num: int
    syslog: bool
    remote_syslog: str
    pid_file: str
    ports_file_dir: str
    lame_duck_duration_ns: int
    lame_duck_grace_period_ns: int
    config_file: str
