"""Writes src/penstock/protocol/error_codes.py from schemas/errors.json.

    python tools/generate_errors.py           write the file
    python tools/generate_errors.py --check   exit 1, saying so, when it is not up to date

An entry: name (as in the official table), code (HTTP-like), err_code, description with {placeholders}, and
official_err_code where the official server uses another number than the specification. Entries are told
apart by name: numbers 10203..10206 have two meanings each.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "schemas/errors.json"
TARGET = ROOT / "src/penstock/protocol/error_codes.py"

HEAD = '''"""The JetStream API's errors. Generated from schemas/errors.json by tools/generate_errors.py: change those.

A constant is a template: `raise STREAM_NOT_FOUND.exception()`, and where its description has placeholders,
`raise STREAM_INVALID_CONFIG.exception(err="...")`.
"""

from __future__ import annotations

from typing import Final

from penstock.protocol.api.base import ApiError
'''

MIDDLE = """
# Where the official server numbers an error otherwise than the specification: the same under its number.
OFFICIAL: Final[dict[ApiError, ApiError]] = {
"""


def constant_name(name: str) -> str:
    """`StreamWrongLastMsgIDErrF` -> `STREAM_WRONG_LAST_MSG_ID`."""
    stem = re.sub(r"(ErrF|ErrorF|Err|F)$", "", name)
    stem = stem.replace("UnSupport", "Unsupport")
    words = re.findall(r"[A-Z]{2,}(?=[A-Z][a-z]|$)|[A-Z][a-z0-9]*", stem)
    return "_".join(words).upper()


def generate(entries: list[dict[str, object]]) -> str:
    """The text of the module."""
    lines = [HEAD]
    seen: dict[str, object] = {}
    official = []
    for entry in sorted(entries, key=lambda item: (int(str(item["err_code"])), str(item["name"]))):
        constant = constant_name(str(entry["name"]))
        if constant in seen:
            raise SystemExit(f"{TABLE.name}: {entry['name']} and {seen[constant]} would both be {constant}")
        seen[constant] = entry["name"]
        text = json.dumps(entry["description"], ensure_ascii=False)
        lines.append(_assignment(constant, f"{entry['code']}, {entry['err_code']}, {text}"))
        if "official_err_code" in entry:
            official.append(
                f"    {constant}: ApiError({entry['code']}, {entry['official_err_code']}, {text}),"
            )
    return "\n".join(lines) + "\n" + MIDDLE + "\n".join(official) + "\n}\n"


def _assignment(constant: str, arguments: str) -> str:
    line = f"{constant}: Final = ApiError({arguments})"
    return line if len(line) <= 110 else f"{constant}: Final = ApiError(\n    {arguments}\n)"


def main() -> int:
    text = generate(json.loads(TABLE.read_text()))
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(text)
        return 0
    if TARGET.exists() and TARGET.read_text() == text:
        return 0
    print(
        f"{TARGET.relative_to(ROOT)} is not what {TABLE.relative_to(ROOT)} gives: run tools/generate_errors.py"
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
