"""Templates in bodies of `pub`, `req` and `reply`: `{{Count}}`, `{{Time}}`, `{{ID}}`, `{{Random 10 100}}`.

They are the functions of the official command line. Unknown ones are errors, so that a typing error is
not published.
"""

from __future__ import annotations

import random
import re
import string
import time
from collections.abc import Callable
from datetime import datetime

from penstock.cli.framework.command_parser import UsageError
from penstock.client.requests import new_nuid

_TEMPLATE = re.compile(r"\{\{\s*\.?(\w+)((?:\s+\d+)*)\s*\}\}")
_LETTERS = string.ascii_letters + string.digits


def _random(shortest: int = 1, longest: int = 0) -> str:
    length = random.randint(shortest, max(shortest, longest))
    return "".join(random.choices(_LETTERS, k=length))


_FUNCTIONS: dict[str, Callable[..., str]] = {
    "TimeStamp": lambda: datetime.now().astimezone().isoformat(timespec="seconds"),
    "Time": lambda: datetime.now().astimezone().strftime("%H:%M:%S"),
    "Unix": lambda: str(int(time.time())),
    "UnixNano": lambda: str(time.time_ns()),
    "ID": new_nuid,
    "Random": _random,
}


def has_templates(text: str) -> bool:
    """Whether a text has any template."""
    return "{{" in text and _TEMPLATE.search(text) is not None


def expanded(text: str, count: int, request: str = "") -> str:
    """The text with its templates replaced. count: number of the message, from 1. request: of `reply`:
    the body it replies to. Raises UsageError for an unknown function.
    """

    def replace(match: re.Match[str]) -> str:
        name, arguments = match[1], [int(one) for one in match[2].split()]
        if name in ("Count", "Cnt"):
            return str(count)
        if name == "Request":
            return request
        if name.isdigit():
            return match[0]
        function = _FUNCTIONS.get(name)
        if function is None:
            known = ", ".join(["Count", "Request", *_FUNCTIONS])
            raise UsageError(
                f"unknown template {match[0]}; there are {known}; --no-templates takes it as text"
            )
        try:
            return function(*arguments)
        except TypeError:
            raise UsageError(f"template {match[0]} has the wrong number of arguments") from None

    return _TEMPLATE.sub(replace, text) if "{{" in text else text
