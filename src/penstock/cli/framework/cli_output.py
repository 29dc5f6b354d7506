"""What commands print: results on stdout, everything else on stderr.

`--json` replaces tables and texts by one JSON value, in the field names of the NATS API. Colours,
progress bars and live views appear on terminals only. Tables are as wide as their content where stdout is
no terminal, so that scripts never see a truncated cell.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

import msgspec

from penstock.cli.framework.command_table import Option

if TYPE_CHECKING:
    from rich.console import Console

OUTPUT_OPTIONS = (
    Option(names=("--json", "-j"), convert=bool, help="Print one JSON value instead of text"),
    Option(
        names=("--color", "--colors"),
        metavar="WHEN",
        choices=("auto", "always", "never"),
        default="auto",
        help="Colours",
    ),
)
WIDE = 10_000


class CommandOutput:
    """Where one command prints. as_json: the user wants JSON."""

    def __init__(
        self,
        *,
        as_json: bool = False,
        color: str = "auto",
        out: IO[str] | None = None,
        err: IO[str] | None = None,
    ) -> None:
        self.as_json = as_json
        self._out = sys.stdout if out is None else out
        self._err = sys.stderr if err is None else err
        self._color = color
        self._in_lines = False

    @property
    def is_terminal(self) -> bool:
        """Whether stdout is a terminal."""
        return self._out.isatty()

    def repeat(self) -> None:
        """The command prints its result again and again: from now on JSON is one value a line."""
        self._in_lines = True

    @contextmanager
    def captured(self) -> Iterator[io.StringIO]:
        """Gather what is printed within as text, as wide and colored as on stdout."""
        stdout, page = self._out, _Page(terminal=self.is_terminal)
        self._out = page
        try:
            yield page
        finally:
            self._out = stdout

    @property
    def colored(self) -> bool:
        """Whether to print colours on stdout."""
        if self._color != "auto":
            return self._color == "always"
        return self.is_terminal and not os.environ.get("NO_COLOR")

    def line(self, text: str = "") -> None:
        """A line of the result."""
        self._out.write(text + "\n")

    def text(self, text: str) -> None:
        """Lines of the result, with their ends."""
        self._out.write(text)

    def raw(self, data: bytes) -> None:
        """Bytes of the result, such as a payload."""
        self._out.flush()
        buffer = getattr(self._out, "buffer", None)
        if buffer is None:  # a text stream of a test
            self._out.write(data.decode("utf-8", "replace"))
        else:
            buffer.write(data)
            buffer.flush()

    def flush(self) -> None:
        """Write what is buffered, for readers of a pipe."""
        self._out.flush()

    def note(self, text: str) -> None:
        """A remark for people; not on stdout, and not with `--json`."""
        if not self.as_json:
            self._err.write(text + "\n")
            self._err.flush()

    def warn(self, text: str) -> None:
        """A warning on stderr."""
        self._err.write(text + "\n")
        self._err.flush()

    def json(self, value: Any) -> None:
        """The result as JSON, indented. Structs and dataclasses become objects."""
        if self._in_lines:
            self.json_line(value)
            return
        text = msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2)
        self.raw(text + b"\n")

    def json_line(self, value: Any) -> None:
        """One JSON value a line, for results without an end such as subscriptions."""
        self.raw(msgspec.json.encode(value, enc_hook=str) + b"\n")

    def table(
        self, columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "", numbers: str = ""
    ) -> None:
        """A table. numbers: the columns (by name, with commas between) that are aligned to the right."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        if title:
            self.line(self._styled(title))
        made = Table(box=box.ROUNDED)
        right = {name.strip() for name in numbers.split(",")}
        for name in columns:
            made.add_column(Text(name), justify="right" if name in right else "left", overflow="fold")
        for row in rows:
            made.add_row(*(Text(str(cell)) for cell in row))
        self.console().print(made)

    def sections(self, title: str, sections: Iterable[tuple[str, Sequence[tuple[str, object]]]]) -> None:
        """A page of names and values in sections, aligned at the colons. Sections without rows are left
        out."""
        self.line(self._styled(title))
        for heading, rows in sections:
            if not rows:
                continue
            if heading:
                self.line()
                self.line(self._styled(f"{heading}:"))
            self.line()
            width = max(22, *(len(name) for name, _ in rows))
            for name, value in rows:
                first, *more = str(value).split("\n")
                self.line(f"{name:>{width}}: {first}" if name else f"{'':{width}}  {first}")
                for text in more:
                    self.line(f"{'':{width}}  {text}")
        self.line()

    def _styled(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self.colored else text

    def console(self) -> Console:
        """A rich console on stdout."""
        from rich.console import Console

        width = None if self.is_terminal else WIDE
        return Console(
            file=self._out,
            width=width,
            force_terminal=self.is_terminal or self.colored,
            no_color=not self.colored,
            highlight=False,
            soft_wrap=False,
        )

    @contextmanager
    def progress(self, text: str, total: int | None, *, shown: bool | None = None) -> Iterator[Progress]:
        """A progress bar on stderr. total: None if unknown. shown: None: if stderr is a terminal."""
        if not (self._err.isatty() and not self.as_json if shown is None else shown):
            yield Progress()
            return
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        columns = TextColumn("{task.fields[text]}"), BarColumn(), TimeElapsedColumn()
        with RichProgress(*columns, console=Console(file=self._err)) as bar:
            task = bar.add_task(text, total=total, text=text)

            def show(completed: int, text: str) -> None:
                bar.update(task, completed=completed, text=text)

            yield Progress(show, text)


class _Page(io.StringIO):
    """Text in place of stdout, which is or is not a terminal."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


class Progress:
    """A progress bar, or nothing where none is shown."""

    def __init__(self, show: Any = None, text: str = "") -> None:
        self._show = show
        self._text = text
        self._done = 0

    def advance(self, done: int, text: str = "") -> None:
        """So much more is done. text: in place of the bar's text."""
        self._done += done
        if self._show is not None:
            self._show(self._done, text or self._text)
