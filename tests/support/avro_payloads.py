"""Avro payloads for tests, made by fastavro."""

from __future__ import annotations

import io
import json
from typing import Any


def record(*fields: Any, name: str = "R") -> str:
    """A record's schema; a field is (name, type) or (name, type, default)."""
    named = [dict(zip(("name", "type", "default"), field, strict=False)) for field in fields]
    return json.dumps({"type": "record", "name": name, "fields": named})


def encoded(schema: str, value: Any) -> bytes:
    import fastavro

    file = io.BytesIO()
    fastavro.schemaless_writer(file, json.loads(schema), value)
    return file.getvalue()
