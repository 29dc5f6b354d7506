"""An extension of griffe, which reads the code for the reference: leave out what is internal."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import griffe

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LISTENER = "ConnectionListener"
SOURCE = Path(__file__).resolve().parent.parent / "src/penstock/client/connection_listener.py"


def called_by_the_client() -> set[str]:
    """The methods that the client calls on its parts when its connection changes."""
    return {node.name for node in ast.walk(ast.parse(SOURCE.read_text())) if isinstance(node, FUNCTIONS)}


class HideInternal(griffe.Extension):
    """Removes methods and properties that other modules of the package use and programs should not."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        listens = cls.name == LISTENER or any(LISTENER in str(base) for base in cls.bases)
        hidden = {"nats_py_names"} | (called_by_the_client() if listens else set())
        for name, member in list(cls.members.items()):
            text = "" if member.is_alias or member.docstring is None else member.docstring.value
            if name in hidden or "internal" in text.lower():
                cls.del_member(name)
