"""healthz: whether the server is ready, and whether an account, stream or consumer is available.

As in the official server, a running server without JetStream is healthy for every JetStream query.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.server.monitoring.pages.page_options import Page, PageOptions, Query, RefusedQuery, flag

if TYPE_CHECKING:
    from penstock.jetstream.containment import Problem
    from penstock.server.monitoring.monitored_server import MonitoredServer


class HealthzOptions(PageOptions, frozen=True, kw_only=True, rename=lambda name: name.replace("_", "-")):
    """Options of healthz. js_enabled_only: checks no more than that JetStream is on; js_server_only: not its
    streams and consumers; js_meta_only: the meta layer alone."""

    js_enabled: bool = False
    js_enabled_only: bool = False
    js_server_only: bool = False
    js_meta_only: bool = False
    account: str = ""
    stream: str = ""
    consumer: str = ""
    details: bool = False

    @classmethod
    def from_query(cls, query: Query) -> HealthzOptions:
        return cls(
            js_enabled=flag(query, "js-enabled"),
            js_enabled_only=flag(query, "js-enabled-only"),
            js_server_only=flag(query, "js-server-only"),
            js_meta_only=flag(query, "js-meta-only"),
            account=query.get("account", ""),
            stream=query.get("stream", ""),
            consumer=query.get("consumer", ""),
            details=flag(query, "details"),
        )


class _Fault(msgspec.Struct, omit_defaults=True):
    """An error in `details`."""

    type: str
    account: str = ""
    stream: str = ""
    consumer: str = ""
    error: str = ""


def healthz(server: MonitoredServer, options: HealthzOptions) -> Page:
    """ok. Raises RefusedQuery: 400 for invalid options, 404 for missing or unavailable objects."""
    if options.stream and not options.account:
        raise _bad('"account" must not be empty when checking stream health')
    if options.consumer and not options.stream:
        raise _bad('"stream" must not be empty when checking consumer health')
    if server.failed:
        raise _unhealthy(options, 503, _Fault("JETSTREAM", error="JetStream stopped: the store failed"))
    unhealthy = _of_cluster(server, options)
    if unhealthy:
        raise _unhealthy(options, 503, *unhealthy)
    if options.js_meta_only:
        return {"status": "ok"}
    fault = _missing(server, options) if server.jetstream is not None else None
    if fault is not None:
        raise _unhealthy(options, 404, fault)
    broken = [] if options.js_enabled_only or options.js_server_only else _broken(server, options)
    if broken:
        raise _unhealthy(options, 503, *broken)
    return {"status": "ok"}


def _of_cluster(server: MonitoredServer, options: HealthzOptions) -> list[_Fault]:
    """What is wrong with replicated JetStream."""
    service = server.jetstream
    if service is None or service.cluster is None or options.js_enabled_only:
        return []
    from penstock.server.replicated.cluster_monitoring import meta_problems, stream_problems

    found = [_Fault("JETSTREAM", error=one.why) for one in meta_problems(service.cluster)]
    if found or options.js_server_only or options.js_meta_only:
        return found
    return [
        _Fault("STREAM", one.account, one.stream, error=one.why)
        for one in stream_problems(service.cluster)
        if options.account in ("", one.account) and options.stream in ("", one.stream)
    ]


def _broken(server: MonitoredServer, options: HealthzOptions) -> list[_Fault]:
    """Offline streams and consumers among the selected ones."""
    if server.jetstream is None:
        return []
    found = [
        _Fault("ACCOUNT", account, error=f'JetStream of account "{account}" does not work: {why}')
        for account, why in server.jetstream.failed.items()
        if options.account in ("", account)
    ]
    for account, engine in server.jetstream.engines.items():
        if options.account not in ("", account):
            continue
        for one in engine.containment.problems():
            if options.stream in ("", one.stream) and options.consumer in ("", one.consumer):
                found.append(_fault_of(account, one))
    return found


def _fault_of(account: str, one: Problem) -> _Fault:
    kind, what = "STREAM", f'stream "{one.stream}"'
    if one.consumer:
        kind, what = "CONSUMER", f'consumer "{one.consumer}" of {what}'
    text = f'JetStream {what} of account "{account}" does not work: {one.why}'
    return _Fault(kind, account, one.stream, one.consumer, text)


def _missing(server: MonitoredServer, options: HealthzOptions) -> _Fault | None:
    account, stream, consumer = options.account, options.stream, options.consumer
    if not account or options.js_enabled_only or options.js_server_only:
        return None
    assert server.jetstream is not None
    engine = server.jetstream.engines.get(account)
    if engine is None:
        return _Fault("ACCOUNT", account, error=f'JetStream account "{account}" not found')
    if not stream:
        return None
    found = engine.streams.get(stream)
    if found is None and stream in engine.offline:
        return None
    if found is None:
        text = f'JetStream stream "{stream}" not found on account "{account}"'
        return _Fault("STREAM", account, stream, error=text)
    if consumer and consumer not in found.consumers and consumer not in found.offline:
        text = f'JetStream consumer "{consumer}" not found for stream "{stream}" on account "{account}"'
        return _Fault("CONSUMER", account, stream, consumer, text)
    return None


def _bad(text: str) -> RefusedQuery:
    return RefusedQuery(text, 400, {"status": "error", "error": text})


def _unhealthy(options: HealthzOptions, status: int, *faults: _Fault) -> RefusedQuery:
    first = faults[0].error
    if options.details:
        return RefusedQuery(first, status, {"status": "error", "errors": list(faults)})
    return RefusedQuery(first, status, {"status": "unavailable", "error": first})
