"""Server options from the flags of `penstock serve` and the configuration file they name."""

from __future__ import annotations

import os
from typing import Any

from msgspec import structs

from penstock.errors import ConfigError
from penstock.server.config.server_options import JetStreamOptions, ServerOptions, TlsOptions, WebOptions


def options_of(found: dict[str, Any]) -> ServerOptions:
    """Load the configuration file, if any, and override it by flags. Raises ConfigError, OSError."""
    options = ServerOptions()
    path = found.get("config", "")
    if path:
        from penstock.server.config.directives import load

        options = load(path)
    changes = {key: value for key, value in found.items() if key in ServerOptions.__struct_fields__}
    changes.pop("jetstream", None)
    if "web" in found:
        changes["web"] = (options.web or WebOptions()) if found["web"] else None
    for name, options_set in _SEVERAL.items():
        if name in found:
            changes |= dict.fromkeys(options_set, found[name])
    _refuse_what_needs_others(found)
    jetstream = options.jetstream
    if "jetstream" in found:
        jetstream = (jetstream or JetStreamOptions()) if found["jetstream"] else None
    if jetstream is not None:
        # `penstock serve` persists streams; only an embedded server uses a temporary store.
        store_dir = found.get("store_dir") or jetstream.store_dir or _default_store_dir()
        jetstream = structs.replace(jetstream, store_dir=store_dir)
    if "tls_on" in found or "tls_verify" in found:
        changes["tls"] = _tls_options(options.tls, found)
    if _CLUSTER_FLAGS & found.keys():
        from penstock.cli.cluster_flags import cluster_of

        changes["cluster"] = cluster_of(options.cluster, found)
    return structs.replace(options, jetstream=jetstream, **changes)


_CLUSTER_FLAGS = frozenset(
    {"cluster_listen", "routes", "no_advertise", "cluster_advertise", "connect_retries"}
)

_SEVERAL = {
    "debug_and_trace": ("debug", "trace"),
    "verbose_trace": ("trace", "trace_verbose"),
    "debug_and_verbose_trace": ("debug", "trace", "trace_verbose"),
}


def _refuse_what_needs_others(found: dict[str, Any]) -> None:
    """Raise ConfigError for unsupported flags: the profiling port, a bad syslog address."""
    if found.get("profile"):
        from penstock.server.config.directives import NO_PROFILE

        raise ConfigError(f"--profile: {NO_PROFILE}")
    if found.get("remote_syslog"):
        from penstock.server.config.option_checks import syslog_address

        syslog_address(found["remote_syslog"])


def _tls_options(given: TlsOptions | None, found: dict[str, Any]) -> TlsOptions | None:
    """TLS options from flags. Without `--tls` or `--tlsverify` the file flags have no effect."""
    if not found.get("tls_on", True) and not found.get("tls_verify"):
        return None
    changes: dict[str, Any] = {
        key: found[key] for key in ("cert_file", "key_file", "ca_file") if key in found
    }
    if found.get("tls_verify"):
        changes["verify"] = True
    if given is not None:
        return structs.replace(given, **changes)
    return TlsOptions(**changes)


def digest(options: ServerOptions) -> str:
    """Digest of the configuration file's content, for the log."""
    import hashlib

    if not options.config_file:
        return "no file"
    with open(options.config_file, "rb") as file:
        return f"sha256:{hashlib.sha256(file.read()).hexdigest()}"


def _default_store_dir() -> str:
    """Default store directory. Not `nats`, which the official server uses, in another format."""
    return os.path.join(os.environ.get("TMPDIR", "/tmp"), "penstock")
