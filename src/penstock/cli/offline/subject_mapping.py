"""`penstock mapping SOURCE DESTINATION [SUBJECT]`: tries a subject mapping, without a server."""

from __future__ import annotations

import random

from penstock.cli.framework.command_run import CommandFailed, CommandRun
from penstock.cli.framework.command_table import Argument, Command
from penstock.protocol.subjects import check_subject
from penstock.protocol.transforms import Transform


async def _mapping(run: CommandRun) -> None:
    values = run.values
    transform = Transform(values.text("source"), values.text("destination"))
    subject = values.text("subject")
    if not subject:
        run.output.line(f"{transform.source} maps to {transform.destination}")
        return
    encoded = check_subject(subject).encode()
    if not transform.filter.matches(encoded):
        raise CommandFailed(f"subject {subject!r} does not match {transform.source!r}")
    found = transform.apply(encoded, random.randrange).decode("utf-8", "replace")
    if run.output.as_json:
        run.output.json({"source": transform.source, "subject": subject, "result": found})
    else:
        run.output.line(found)


MAPPING = Command(
    name="mapping",
    summary="Try a subject mapping.",
    run=_mapping,
    arguments=(
        Argument(name="source", help="Subjects that are mapped, with wildcards"),
        Argument(name="destination", help="What they are mapped to"),
        Argument(name="subject", help="A subject to map", required=False),
    ),
    aliases=("mappings",),
    examples=("mapping 'foo.*.*' 'foo.{{wildcard(1)}}.{{partition(5,1,2)}}' foo.us.customerid",),
    connects=False,
)
