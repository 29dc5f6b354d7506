"""Every command of `penstock`, and the module that has it. A module is imported when its command runs."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.cli.framework.command_table import Command, CommandGroup


@dataclass(frozen=True, slots=True)
class RegisteredCommand:
    """A word behind `penstock`.

    place: `module:NAME` of a CommandGroup or Command, or of a function that takes the words behind the
    command and returns the exit status (`takes_words`). extras: what must be installed. section: heading
    in the list.
    """

    name: str
    summary: str
    place: str
    section: str
    aliases: tuple[str, ...] = ()
    extras: tuple[str, ...] = ("cli",)
    takes_words: bool = False

    def load(self) -> Command | CommandGroup:
        """Import its module. Raises MissingExtraError if an extra is not installed."""
        from penstock.extras import need

        need(f"penstock {self.name}", *self.extras)
        module, _, name = self.place.partition(":")
        found: Command | CommandGroup = getattr(importlib.import_module(module), name)
        return found

    def run_words(self, words: list[str]) -> int:
        """Run a command that reads its words itself."""
        from penstock.extras import need

        need(f"penstock {self.name}", *self.extras)
        module, _, name = self.place.partition(":")
        status: int = getattr(importlib.import_module(module), name)(words)
        return status


SERVERS, MESSAGING, STREAMS, TOOLS = "Servers", "Messages", "Streams", "Tools"

REGISTRY: tuple[RegisteredCommand, ...] = (
    RegisteredCommand(
        "serve",
        "Run a server in the foreground, with nats-server's flags",
        "penstock.cli.serve:serve",
        SERVERS,
        extras=(),
        takes_words=True,
    ),
    RegisteredCommand(
        "store",
        "Check, repair or dump a store that no server uses",
        "penstock.cli.store:store",
        SERVERS,
        extras=("cli", "server"),
        takes_words=True,
    ),
    RegisteredCommand(
        "server",
        "Examine servers and give them commands",
        "penstock.cli.server_commands:SERVER",
        SERVERS,
        aliases=("srv",),
    ),
    RegisteredCommand(
        "cluster",
        "Run a cluster of local servers",
        "penstock.cli.cluster_up_command:CLUSTER",
        SERVERS,
        extras=("cli", "server"),
    ),
    RegisteredCommand(
        "events",
        "Show advisories, metrics and server events as they come",
        "penstock.cli.events_command:EVENTS",
        SERVERS,
        aliases=("event",),
    ),
    RegisteredCommand("top", "Show the connections of a server", "penstock.cli.top_command:TOP", SERVERS),
    RegisteredCommand("trace", "Show the route of a message", "penstock.cli.trace_command:TRACE", MESSAGING),
    RegisteredCommand(
        "latency",
        "Measure how long messages take between two servers",
        "penstock.cli.latency_command:LATENCY",
        MESSAGING,
        aliases=("lat",),
    ),
    RegisteredCommand(
        "account",
        "Show the account of the connection, and back up its streams",
        "penstock.cli.account_commands:ACCOUNT",
        SERVERS,
        aliases=("a",),
    ),
    RegisteredCommand(
        "auth",
        "Manage operators, accounts, users, nkeys and credentials",
        "penstock.cli.auth_commands:AUTH",
        TOOLS,
        extras=("cli", "nkeys"),
    ),
    RegisteredCommand(
        "context",
        "Manage contexts: named settings of connections",
        "penstock.cli.context_commands:CONTEXT",
        TOOLS,
        aliases=("ctx",),
    ),
    RegisteredCommand("kv", "Work with key-value buckets", "penstock.cli.kv_commands:KV", STREAMS),
    RegisteredCommand(
        "object", "Work with object stores", "penstock.cli.object_commands:OBJECT", STREAMS, aliases=("obj",)
    ),
    RegisteredCommand(
        "service",
        "Discover services and send requests to them",
        "penstock.cli.service_commands:SERVICE",
        MESSAGING,
        aliases=("micro",),
    ),
    RegisteredCommand(
        "pub",
        "Publish a message or each line of an input, also as an atomic or fast batch",
        "penstock.cli.messaging.pub:PUB",
        MESSAGING,
        aliases=("publish",),
    ),
    RegisteredCommand(
        "sub",
        "Print messages as they come, from subjects or from a stream",
        "penstock.cli.messaging.subscribing:SUB",
        MESSAGING,
        aliases=("subscribe",),
    ),
    RegisteredCommand(
        "req",
        "Send a request and print the reply",
        "penstock.cli.messaging.requesting:REQ",
        MESSAGING,
        aliases=("request",),
    ),
    RegisteredCommand("reply", "Answer requests", "penstock.cli.messaging.replying:REPLY", MESSAGING),
    RegisteredCommand(
        "rtt", "Measure the round-trip time to servers", "penstock.cli.messaging.rtt:RTT", MESSAGING
    ),
    RegisteredCommand(
        "stream",
        "Manage streams and look at their messages",
        "penstock.cli.streams:STREAM",
        STREAMS,
        aliases=("str", "st", "ms", "s"),
    ),
    RegisteredCommand(
        "consumer",
        "Manage consumers and get their messages",
        "penstock.cli.consumers:CONSUMER",
        STREAMS,
        aliases=("con", "obs", "c"),
    ),
    RegisteredCommand(
        "backup", "Back up streams, and restore them", "penstock.cli.backup_commands:BACKUP", STREAMS
    ),
    RegisteredCommand(
        "counter",
        "Read and change counters",
        "penstock.cli.counter_commands:COUNTER",
        STREAMS,
        aliases=("ctr",),
    ),
    RegisteredCommand("bench", "Measure a server", "penstock.cli.benchmarks.bench_commands:BENCH", TOOLS),
    RegisteredCommand(
        "schema",
        "Show types of API answers and events, and check documents",
        "penstock.cli.offline.schema_commands:SCHEMA",
        TOOLS,
    ),
    RegisteredCommand(
        "errors",
        "Explain error codes of the JetStream API",
        "penstock.cli.offline.error_commands:ERRORS",
        TOOLS,
        aliases=("err", "error"),
    ),
    RegisteredCommand(
        "jwt",
        "Show the claims of JWTs and credentials files",
        "penstock.cli.auth_commands:JWT",
        TOOLS,
        extras=("cli", "nkeys"),
    ),
    RegisteredCommand(
        "mapping",
        "Try a subject mapping",
        "penstock.cli.offline.subject_mapping:MAPPING",
        TOOLS,
        aliases=("mappings",),
    ),
    RegisteredCommand(
        "completion",
        "Print a completion script for a shell",
        "penstock.cli.offline.completion:COMPLETION",
        TOOLS,
    ),
    RegisteredCommand("complete", "", "penstock.cli.offline.completion:COMPLETE", ""),
    RegisteredCommand("man", "Write man pages of all commands", "penstock.cli.offline.manuals:MAN", TOOLS),
    RegisteredCommand(
        "pipeline",
        "Archive, replay and examine streams with Spark",
        "penstock.cli.pipeline:pipeline",
        TOOLS,
        extras=("pipelines",),
        takes_words=True,
    ),
)


def find_registered(word: str) -> RegisteredCommand | None:
    """The command with this name or alias."""
    return next((one for one in REGISTRY if word == one.name or word in one.aliases), None)
