"""What mkdocs runs while it builds the site: pages made from the code, and links that lead out of docs/.

Documents link to source files, tests and the documents at the root, as a reader of the repository needs it.
The documents at the root become pages; other files are not on the site, so that their links become the
file's path. Rejected: links to a hosted repository, whose address a copy of this one does not know.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import site_pages  # noqa: E402

AT_ROOT = {
    "CHANGELOG.md": "changelog.md",
    "ARCHITECTURE.md": "architecture.md",
    "GLOSSARY.md": "glossary.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
}
"""Document at the root -> its page."""

LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")


def link(folder: str, page: str, text: str, target: str, anchor: str) -> str:
    """A link of a document in `folder` of the repository, on the page at `page` of the site."""
    path = posixpath.normpath(posixpath.join(folder, target))
    if path in AT_ROOT:
        on_site = AT_ROOT[path]
    elif path in ("docs", "docs/decisions"):
        on_site = "index.md" if path == "docs" else "decisions/README.md"
    elif path.startswith("docs/"):
        on_site = path.removeprefix("docs/")  # mkdocs complains when it does not exist
    elif (ROOT / path).exists():
        return f"{text} (`{path}`)" if text.strip("`") != path else f"`{path}`"
    else:
        raise PluginError(f"{page} links to {target}, which does not exist")
    return f"[{text}]({posixpath.relpath(on_site, posixpath.dirname(page) or '.')}{anchor})"


def links(markdown: str, folder: str, page: str) -> str:
    return LINK.sub(lambda found: link(folder, page, found[1], found[2], found[3] or ""), markdown)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    for path, markdown in site_pages.pages().items():
        files.append(File.generated(config, path, content=markdown))
    for name, path in AT_ROOT.items():
        text = links((ROOT / name).read_text(encoding="utf-8"), "", path)
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead the links of a document of docs/ to pages, or write them as paths."""
    path = page.file.src_uri
    if page.file.generated_by is not None:
        return markdown
    return links(markdown, posixpath.join("docs", posixpath.dirname(path)), path)
