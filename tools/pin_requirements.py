"""Writes requirements/dev.txt: the versions that are installed here, for `make setup` to install elsewhere.

What runs on a developer's machine and in CI has their rights. With exact versions a new release of any of
these packages gets there by a reviewed commit, and not by the next build.

    python tools/pin_requirements.py
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import distributions
from pathlib import Path

TARGET = Path(__file__).parent.parent / "requirements" / "dev.txt"
HEAD = "# Written by tools/pin_requirements.py: constraints of `make setup`, none of the package itself.\n"
OWN = {"penstock-nats"}


def pins() -> list[str]:
    """`name==version` of every distribution in this environment, but ours."""
    found = {
        re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower(): distribution.version
        for distribution in distributions()
    }
    return [f"{name}=={version}" for name, version in sorted(found.items()) if name not in OWN]


def main() -> int:
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(HEAD + "".join(f"{pin}\n" for pin in pins()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
