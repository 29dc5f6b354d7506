"""Exports, imports and mappings of accountz, in the official format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.routing.imports_exports import (
    AnyExport,
    Latency,
    ServiceExport,
    ServiceImport,
    plan,
    service_export_of,
)
from penstock.server.monitoring.pages.page_options import Page

if TYPE_CHECKING:
    from penstock.routing.mapping import SubjectMapping
    from penstock.server.config.server_options import AccountOptions
    from penstock.server.monitoring.monitored_server import MonitoredServer


def sharing(
    server: MonitoredServer, own: AccountOptions | None, mappings: tuple[SubjectMapping, ...]
) -> Page:
    """The account's `exports`, `imports` and `mappings`, without empty ones."""
    page: Page = {}
    if mappings:
        page["mappings"] = {
            mapping.source: [
                {"subject": d.subject, "weight": d.weight, **({"cluster": d.cluster} if d.cluster else {})}
                for d in mapping.destinations
            ]
            for mapping in mappings
        }
    if own is None:
        return page
    if own.exports:
        page["exports"] = [_export(export) for export in own.exports]
    if own.imports:
        page["imports"] = _imports(server, own)
    return page


def _export(export: AnyExport) -> Page:
    page: Page = {"subject": export.subject}
    if isinstance(export, ServiceExport):
        page |= {"type": "service", "response_type": export.response.value}
        if export.latency is not None:
            page["service_latency"] = _latency(export.latency)
    else:
        page["type"] = "stream"
    if export.token_required:
        page["token_req"] = True
    if export.accounts:
        page["approved_accounts"] = list(export.accounts)
    return page


def _imports(server: MonitoredServer, own: AccountOptions) -> list[Page]:
    """Stream imports first, then service imports."""
    found: list[Page] = []
    for entry in sorted(own.imports, key=lambda entry: isinstance(entry, ServiceImport)):
        its = plan(entry)
        page: Page = {"subject": its.remote, "account": entry.account}
        if isinstance(entry, ServiceImport):
            page |= {"to": its.local, "local_subject": its.local, "type": "service", "share": entry.share}
            exporter = server.accounts.options_of(entry.account)
            export = service_export_of(exporter.exports, entry.subject) if exporter is not None else None
            if export is not None and export.latency is not None:
                page["latency"] = _latency(export.latency)
        else:
            page |= {"local_subject": its.local, "type": "stream", "share": False}
        found.append(page | {"invalid": False, "tracking": False})
    return found


def _latency(latency: Latency) -> Page:
    return {"sampling": latency.sampling or "headers", "results": latency.subject}
