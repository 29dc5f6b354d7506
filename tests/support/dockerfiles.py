"""Reads a Dockerfile into its stages, for rules about them."""

from __future__ import annotations

import json
import re
from typing import NamedTuple


class Instruction(NamedTuple):
    """One instruction, with its continuation lines joined."""

    name: str
    text: str

    @property
    def is_exec_form(self) -> bool:
        """Whether the words are a JSON array, which needs no shell."""
        try:
            return isinstance(json.loads(self.text), list)
        except ValueError:
            return False


class BuildStage(NamedTuple):
    """What follows a FROM. name: "" without AS."""

    image: str
    name: str
    instructions: list[Instruction]

    def all(self, name: str) -> list[Instruction]:
        return [one for one in self.instructions if one.name == name]


def stages_of(text: str) -> list[BuildStage]:
    """The stages of a Dockerfile. ValueError for what is no instruction, or precedes the first FROM."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    stages: list[BuildStage] = []
    for line in filter(None, (one.strip() for one in joined.splitlines())):
        found = re.fullmatch(r"([A-Z]+)\s+(.+)", line)
        if found is None:
            raise ValueError(f"no instruction: {line}")
        name, rest = found.groups()
        if name == "FROM":
            image, _, stage = rest.partition(" AS ")
            stages.append(BuildStage(image, stage, []))
        elif not stages:
            raise ValueError(f"before the first FROM: {line}")
        else:
            stages[-1].instructions.append(Instruction(name, rest))
    return stages
