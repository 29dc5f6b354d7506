"""The values of one command line, read by name and type.

A name that the command did not declare is an error of the program (KeyError), which tests find by running
each command once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any


class CommandValues:
    """Options and arguments of a command. Missing options have their defaults.

    given: names that the user gave, on the command line, by the environment or at a prompt.
    """

    def __init__(self, values: Mapping[str, Any], given: frozenset[str]) -> None:
        self._values = dict(values)
        self._given = given

    def with_answers(self, answers: Mapping[str, Any]) -> CommandValues:
        """The same with further values, which count as given."""
        return CommandValues({**self._values, **answers}, self._given | set(answers))

    def with_defaults(self, defaults: Mapping[str, Any]) -> CommandValues:
        """The same with values for names that the command does not have."""
        return CommandValues({**defaults, **self._values}, self._given)

    def only(self, names: Collection[str]) -> CommandValues:
        """The same as if only these names had been given."""
        return CommandValues(self._values, self._given & frozenset(names))

    def given(self, name: str) -> bool:
        """Whether the user gave it."""
        return name in self._given

    def any_given(self, *names: str) -> list[str]:
        """Those of the names that the user gave."""
        return [name for name in names if name in self._given]

    def value(self, name: str) -> Any:
        """The value as it is."""
        return self._values[name]

    def text(self, name: str, default: str = "") -> str:
        """A text; `default` if it is missing."""
        found = self._values[name]
        return default if found is None else str(found)

    def texts(self, name: str) -> list[str]:
        """The texts of a repeated option or argument."""
        return list(self._values[name] or [])

    def number(self, name: str, default: int = 0) -> int:
        """A whole number; `default` if it is missing."""
        found = self._values[name]
        return default if found is None else int(found)

    def seconds(self, name: str, default: float = 0.0) -> float:
        """A duration in seconds; `default` if it is missing."""
        found = self._values[name]
        return default if found is None else float(found)

    def flag(self, name: str, default: bool = False) -> bool:
        """Whether a flag is set; `default` if it is missing and negatable."""
        found = self._values[name]
        return default if found is None else bool(found)

    def pairs(self, name: str) -> dict[str, str]:
        """The pairs of a repeated option such as `--metadata`."""
        return dict(self._values[name] or [])

    def path(self, name: str) -> Path | None:
        """A path, or None if it is missing."""
        found = self._values[name]
        return None if found is None else Path(found)
