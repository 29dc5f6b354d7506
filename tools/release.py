"""Makes a release: the version, the changelog's section, a source distribution and wheels.

    python tools/release.py begin 0.2.0     writes the version, and turns "Unreleased" into its section
    python tools/release.py build           builds dist/: sdist, release notes; `make release` adds the wheels

The version is in one place, `__version__` of src/penstock/__init__.py: setuptools, `penstock version`, /varz,
/metrics and the first line of the log read it there. `begin` changes files and nothing else: look at the
difference, commit it, tag the commit, and run `make release`.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "src/penstock/__init__.py"
CHANGELOG = "CHANGELOG.md"
VERSION_LINE = re.compile(r'^__version__ = "(.+)"$', re.M)
NEXT = re.compile(r"(\d+)\.(\d+)\.(\d+)((a|b|rc)\d+)?")


class ReleaseError(Exception):
    """The release cannot be made; the text says why, and what to do."""


def version_of(root: Path) -> str:
    """The version of the package."""
    found = VERSION_LINE.search((root / PACKAGE).read_text(encoding="utf-8"))
    if found is None:
        raise ReleaseError(f"{PACKAGE} has no line __version__")
    return found[1]


def sections(text: str) -> dict[str, str]:
    """The changelog's sections: what follows each heading, by the first word of the heading."""
    parts = re.split(r"^## (.+)\n", text, flags=re.M)
    return {title.split()[0]: body.strip() for title, body in zip(parts[1::2], parts[2::2], strict=True)}


def begin(root: Path, version: str, today: datetime.date) -> None:
    """Writes the version into the package and the changelog. Changes nothing when it raises ReleaseError."""
    if NEXT.fullmatch(version) is None:
        raise ReleaseError(f"{version} is no version: write it as 1.2.3 or 1.2.3rc1")
    package, changelog = root / PACKAGE, root / CHANGELOG
    text = changelog.read_text(encoding="utf-8")
    known = sections(text)
    if version in known:
        raise ReleaseError(f"{CHANGELOG} has a section of {version} already: choose the next version")
    if not known.get("Unreleased"):
        raise ReleaseError(f"{CHANGELOG} has nothing under Unreleased: there is nothing to release")
    heading = f"## Unreleased\n\n## {version} - {today.isoformat()}\n"
    changelog.write_text(text.replace("## Unreleased\n", heading, 1), encoding="utf-8")
    source = package.read_text(encoding="utf-8")
    package.write_text(VERSION_LINE.sub(f'__version__ = "{version}"', source, count=1), encoding="utf-8")


def notes(root: Path) -> str:
    """The changelog's section of the version; that of what is unreleased, before `begin`."""
    version, known = version_of(root), sections((root / CHANGELOG).read_text(encoding="utf-8"))
    if version in known:
        return f"# penstock {version}\n\n{known[version]}\n"
    if known.get("Unreleased"):
        return f"# penstock {version}, not released\n\n{known['Unreleased']}\n"
    raise ReleaseError(f"{CHANGELOG} has no section of {version}: python tools/release.py begin {version}")


def build(root: Path, out: Path) -> list[Path]:
    """Builds the source distribution and the release notes into `out`. Returns them. Raises ReleaseError."""
    out.mkdir(parents=True, exist_ok=True)
    version = version_of(root)
    written = out / f"penstock-{version}-notes.md"
    written.write_text(notes(root), encoding="utf-8")
    code = f"from setuptools import build_meta; print(build_meta.build_sdist({str(out)!r}))"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env={**os.environ, "PENSTOCK_KERNELS": "none"},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        raise ReleaseError(f"the source distribution cannot be built:\n{ended.stdout}{ended.stderr}")
    archive = out / f"penstock_nats-{version}.tar.gz"
    if not archive.exists():
        raise ReleaseError(f"{archive.name} was not built: {PACKAGE} and pyproject.toml differ")
    return [written, archive]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("begin", help="write version and changelog").add_argument("version")
    commands.add_parser("build", help="build into dist/").add_argument(
        "--out", type=Path, default=ROOT / "dist"
    )
    given = parser.parse_args()
    try:
        if given.command == "begin":
            begin(ROOT, given.version, datetime.datetime.now(datetime.UTC).date())
        else:
            for path in build(ROOT, given.out):
                print(path)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
