"""One run of a command: its values, its output, its connection, and its questions to the user.

Exit statuses: 0 done; 1 failed (the server refused or sent an error, nothing was found, no answer in time);
2 the command line can not be; 130 interrupted. Errors are one line on stderr that begins with the command's
words.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING

from penstock.cli.framework.cli_connection import CONNECTION_OPTIONS, ConnectionSettings, resolve
from penstock.cli.framework.cli_output import OUTPUT_OPTIONS, CommandOutput
from penstock.cli.framework.command_help import command_help
from penstock.cli.framework.command_parser import UsageError, parse_command
from penstock.cli.framework.command_table import Argument, Command, Option
from penstock.cli.framework.command_values import CommandValues
from penstock.cli.framework.questions import Question, ask_questions
from penstock.cli.framework.server_refusals import ServerRefusals
from penstock.errors import ClientError, ConfigError, MisuseError, NoServersError, PenstockError

if TYPE_CHECKING:
    from penstock.client import Client, JetStream

EXIT_DONE, EXIT_FAILED, EXIT_MISUSED, EXIT_INTERRUPTED = 0, 1, 2, 130

HELP_OPTION = Option(names=("--help", "-h"), convert=bool, help="Show this text")


class CommandFailed(PenstockError):
    """A command has done what it could, and did not reach its goal. Its text says why and what to do."""


class CommandRun:
    """What a command's function gets.

    path: the command's words, such as `penstock stream rm`. values: its options and arguments. output:
    where it prints. environment: variables of the process. refusals: errors that servers sent. is_repeated:
    whether `repeat` was called.
    """

    def __init__(
        self,
        path: str,
        values: CommandValues,
        output: CommandOutput,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.path = path
        self.values = values
        self.output = output
        self.environment = environment
        self.refusals = ServerRefusals(lambda text: output.warn(f"{path}: {text}"))
        self.is_repeated = False
        self._settings: ConnectionSettings | None = None

    def repeat(self) -> None:
        """The command prints its result again and again, and Ctrl-C is its proper end."""
        self.is_repeated = True
        self.output.repeat()

    @property
    def settings(self) -> ConnectionSettings:
        """Settings of the connection. Raises ConfigError, MisuseError."""
        if self._settings is None:
            self._settings = resolve(self.values, self.environment)
        return self._settings

    @asynccontextmanager
    async def connect(self, **more: object) -> AsyncIterator[Client]:
        """A connected client, as the options of the connection say. more: options of
        `penstock.client.connect`.

        Raises NoServersError with the address and what to do, and what `connect` raises.
        """
        async with self.connect_to(self.settings.url, **more) as opened:
            yield opened

    @asynccontextmanager
    async def connect_to(self, url: str, **more: object) -> AsyncIterator[Client]:
        """The same with other servers than those of the options. url: several with commas between."""
        from penstock import client

        options = self.settings.client_options(self.path)
        options["on_error"] = lambda _, error: self.refusals.heard(error)
        options.update(more)  # type: ignore[typeddict-item]
        try:
            opened = await client.connect(url, **options)
        except NoServersError as error:
            raise NoServersError(
                f"{error}; start a server, or name another with --server or --context"
            ) from error
        try:
            yield opened
            if opened.is_connected:  # the refusal of what was published last is not read yet
                with suppress(ClientError):
                    await opened.flush()
        finally:
            await opened.close()

    @asynccontextmanager
    async def jetstream(self) -> AsyncIterator[JetStream]:
        """A connection's JetStream context, in the domain or with the prefix of the options."""
        async with self.connect() as client:
            yield self.jetstream_of(client)

    def jetstream_of(self, client: Client) -> JetStream:
        """The JetStream context of a client, in the domain or with the prefix of the options."""
        return client.jetstream(**self.settings.js_keywords())

    # --- questions -------------------------------------------------------------------------------

    @property
    def can_ask(self) -> bool:
        """Whether input and output are a terminal, so that prompts can be answered."""
        return is_interactive()

    def confirm(self, question: str, *, force: bool) -> None:
        """Ask before something that can't be undone. force: don't ask, the answer is yes.

        Raises CommandFailed if the answer is no, UsageError without a terminal.
        """
        if force:
            return
        if not self.can_ask:
            raise UsageError(f"{question} This is not a terminal: give --force if you mean it")
        if ask_text(f"{question} [y/N] ").lower() not in ("y", "yes"):
            raise CommandFailed("not done, as you said")

    def ask_options(self, options: Iterable[Option], questions: Iterable[Question]) -> None:
        """Ask for options that were not given, and add the answers to `values`."""
        self.values = ask_questions(
            questions, options, self.values, ask_text, lambda text: sys.stderr.write(f"{text}\n")
        )

    def choose(self, what: str, names: list[str]) -> str:
        """Let the user choose one of the names. Raises UsageError without a terminal, CommandFailed if
        there is nothing to choose from."""
        if not names:
            raise CommandFailed(f"there is no {what} to choose from")
        if not self.can_ask:
            raise UsageError(f"{what} is missing; it is one of {', '.join(names[:20])}")
        for number, name in enumerate(names, 1):
            sys.stderr.write(f"  {number:>3}  {name}\n")
        while True:
            answer = ask_text(f"Select a {what.capitalize()}: ")
            if answer in names:
                return answer
            if answer.isdigit() and 0 < int(answer) <= len(names):
                return names[int(answer) - 1]


def is_interactive() -> bool:
    """Whether stdin and stderr are a terminal, where questions can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask_text(question: str) -> str:
    """Ask a question on the terminal; the answer without spaces around it. Raises
    CommandFailed at its end."""
    with _ends_with_ctrl_c():
        sys.stderr.write(question)
        sys.stderr.flush()
        answer = sys.stdin.readline()
    if not answer:
        raise CommandFailed("no answer")
    return answer.strip()


@contextmanager
def _ends_with_ctrl_c() -> Iterator[None]:
    """Raise KeyboardInterrupt at once: the event loop's handler waits until the command awaits something."""
    before = signal.getsignal(signal.SIGINT)
    if before in (None, signal.SIG_IGN) or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def ask_argument(argument: Argument) -> str | None:
    """Ask for a missing argument; None without a terminal."""
    if not is_interactive():
        return None
    while True:
        answer = ask_text(f"{argument.help.rstrip('.')}: ")
        if answer:
            return answer


def shared_options(command: Command) -> tuple[tuple[str, tuple[Option, ...]], ...]:
    """Titles and options that a command has besides its own. Its own names win over those of output
    options."""
    own = {name for option in command.options for name in option.names}
    output = tuple(one for one in (*OUTPUT_OPTIONS, HELP_OPTION) if not own & set(one.names))
    groups: tuple[tuple[str, tuple[Option, ...]], ...] = (("Output", output),)
    if command.connects:
        groups += (("Connection", CONNECTION_OPTIONS),)
    return groups


def run_command(
    command: Command, words: list[str], path: str, ask: Callable[[Argument], str | None] = ask_argument
) -> int:
    """Run a command and return the exit status. path: the words that lead to it, for help and errors."""
    shared = shared_options(command)
    if _wants_help(words):
        sys.stdout.write(command_help(path, command, shared))
        return EXIT_DONE
    run: CommandRun | None = None
    try:
        values = parse_command(command, words, [one for _, group in shared for one in group], ask=ask)
        output = CommandOutput(as_json=values.flag("json"), color=values.text("color", "auto"))
        run = CommandRun(path, values, output)
        status = _event_loop(command, run)
        sys.stdout.flush()
        return status or _refused(run)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE
    except KeyboardInterrupt:
        expected = command.until_interrupted or (run is not None and run.is_repeated)
        return _refused(run) if expected else EXIT_INTERRUPTED
    except (MisuseError, ConfigError) as error:
        sys.stdout.flush()
        sys.stderr.write(f"{path}: {error}\n")
        return EXIT_MISUSED
    except (PenstockError, OSError) as error:
        sys.stdout.flush()
        if run is None or not run.refusals.was_shown(error):
            sys.stderr.write(f"{path}: {error}\n")
        return EXIT_FAILED


def _refused(run: CommandRun | None) -> int:
    """The status of a command that did what it could: it failed if a server refused any of it."""
    return EXIT_FAILED if run is not None and run.refusals.first is not None else EXIT_DONE


def _wants_help(words: list[str]) -> bool:
    before = words[: words.index("--")] if "--" in words else words
    return "--help" in before or "-h" in before


def _event_loop(command: Command, run: CommandRun) -> int:
    """Run the function on uvloop where it is installed, else on asyncio's loop."""

    async def main() -> int:
        return await command.run(run) or EXIT_DONE

    factory = None
    try:
        import uvloop

        factory = uvloop.new_event_loop
    except ImportError:
        pass
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main())
