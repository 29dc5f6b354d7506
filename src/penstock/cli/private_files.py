"""Files that only their owner may read: contexts, tokens, keys.

A file is replaced as a whole, so that no reader sees half of it, and a crash leaves the old or the new one.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Write a file with mode 0600, and its missing directories with 0700. Raises OSError."""
    make_private_directory(path.parent)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def make_private_directory(path: Path) -> None:
    """Create a directory and those above it that are missing, with mode 0700. Raises OSError."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)
