"""The page's own files, and the headers of every answer.

They are package data and are read once, when the page starts. Scripts are ES modules, as they were written:
nothing is built.
"""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import NamedTuple

KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""No inline script or style, nothing of other origins, no frame around the page, and no HTML from strings:
browsers with trusted types refuse `innerHTML`."""


class StaticFile(NamedTuple):
    content: bytes
    kind: str
    tag: str  # ETag


def load_files() -> dict[str, StaticFile]:
    """The files by name."""
    found = {}
    for entry in resources.files("penstock.web").joinpath("static").iterdir():
        suffix = entry.name[entry.name.rfind(".") :]
        if suffix in KINDS:
            content = entry.read_bytes()
            found[entry.name] = StaticFile(
                content, KINDS[suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            )
    return found
