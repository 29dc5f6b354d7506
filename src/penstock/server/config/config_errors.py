"""Several errors of one configuration.

A file is read to its end, and all errors are reported together: a start after each correction would show
them one by one. An error that another one may cause is left out: the options as a whole are checked only when
every directive could be read.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.errors import ConfigError


class ConfigErrors(ConfigError):
    """What is wrong in a configuration: two errors or more. `errors`: each of them, in the order of the file.

    `file`, `line`, `column` and `message` are those of the first; the text has a line for each.
    """

    def __init__(self, errors: Iterable[ConfigError]) -> None:
        self.errors = tuple(errors)
        first = self.errors[0]
        super().__init__(first.message, file=first.file, line=first.line, column=first.column)
        self.args = ("\n".join(str(error) for error in self.errors),)


def joined(errors: Iterable[ConfigError]) -> ConfigError:
    """One error for all: the error itself when there is only one. `errors`: at least one."""
    flat: dict[str, ConfigError] = {}
    for error in errors:
        for one in error.errors if isinstance(error, ConfigErrors) else (error,):
            flat.setdefault(str(one), one)  # a file that is included twice has its errors twice
    return ConfigErrors(flat.values()) if len(flat) > 1 else next(iter(flat.values()))
