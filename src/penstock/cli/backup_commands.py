"""`penstock backup`: the commands of `stream` and `account` for backups, where the official command line has
them."""

from __future__ import annotations

from dataclasses import replace

from penstock.cli.account_commands import ACCOUNT
from penstock.cli.framework.command_table import Command, CommandGroup
from penstock.cli.streams import STREAM

BACKUP = CommandGroup("backup", "Back up streams, and restore them.")
RESTORE = CommandGroup("restore", "Restore backups.")


def _like(group: CommandGroup, word: str, name: str, examples: tuple[str, ...]) -> Command:
    found = group.find(word)
    assert isinstance(found, Command)
    return replace(found, name=name, aliases=(), examples=examples)


BACKUP.add(_like(STREAM, "backup", "stream", ("backup stream ORDERS /var/backups/orders",)))
BACKUP.add(_like(ACCOUNT, "backup", "account", ("backup account /var/backups/all",)))
RESTORE.add(_like(STREAM, "restore", "stream", ("backup restore stream /var/backups/orders",)))
RESTORE.add(_like(ACCOUNT, "restore", "account", ("backup restore account /var/backups/all",)))
BACKUP.add(RESTORE)
