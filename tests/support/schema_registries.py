"""A schema registry over HTTP for tests: subjects, versions, ids, references, as Confluent's API has them."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


class RegistryDouble:
    """What is registered, and how it answers. paths: every request, in order."""

    def __init__(self) -> None:
        self.url = ""
        self.paths: list[str] = []
        self.authorization = ""
        """What requests must have in this header, if not empty."""
        self.failures = 0
        """How many requests are answered by 503 first."""
        self.serializes = True
        """Whether Protobuf is given as serialized descriptors."""
        self._by_id: list[dict[str, Any]] = []
        self._subjects: dict[str, list[int]] = {}

    def add(
        self, subject: str, schema: str, kind: str = "AVRO", references: Mapping[str, str] | None = None
    ) -> int:
        """Register a version. references: subject by the name under which it is imported. Returns the id."""
        listed = [
            {"name": name, "subject": other, "version": len(self._subjects[other])}
            for name, other in (references or {}).items()
        ]
        entry: dict[str, Any] = {"schema": schema, "references": listed}
        if kind != "AVRO":  # as the real one leaves it out
            entry["schemaType"] = kind
        self._by_id.append(entry)
        self._subjects.setdefault(subject, []).append(len(self._by_id))
        return len(self._by_id)

    def add_protobuf(self, subject: str, file: Any, references: Mapping[str, str] | None = None) -> int:
        """Register a FileDescriptorProto."""
        text = base64.b64encode(file.SerializeToString()).decode()
        return self.add(subject, text, "PROTOBUF", references)

    def answer(self, target: str, authorization: str | None) -> tuple[int, object]:
        self.paths.append(target)
        parts = urlsplit(target)
        words = [unquote(word) for word in parts.path.split("/") if word]
        if self.authorization and authorization != self.authorization:
            return 401, {"error_code": 401, "message": "Unauthorized"}
        if self.failures:
            self.failures -= 1
            return 503, "starting"
        if words[:2] == ["schemas", "ids"]:
            number = int(words[2])
            if not 1 <= number <= len(self._by_id):
                return 404, {"error_code": 40403, "message": f"Schema {number} not found"}
            return 200, self._shown(number, parts.query)
        assert words[0] == "subjects", target
        versions = self._subjects.get(words[1])
        if versions is None:
            return 404, {"error_code": 40401, "message": f"Subject '{words[1]}' not found."}
        version = len(versions) if words[3] == "latest" else int(words[3])
        if version > len(versions):
            return 404, {"error_code": 40402, "message": f"Version {version} not found."}
        facts = {"subject": words[1], "version": version, "id": versions[version - 1]}
        return 200, {**facts, **self._shown(versions[version - 1], parts.query)}

    def _shown(self, number: int, query: str) -> dict[str, Any]:
        entry = self._by_id[number - 1]
        serialized = parse_qs(query).get("format") == ["serialized"] and self.serializes
        if entry.get("schemaType") == "PROTOBUF" and not serialized:
            return {**entry, "schema": 'syntax = "proto3";'}
        return entry


@contextmanager
def running_registry() -> Iterator[RegistryDouble]:
    """A registry on a free port of this machine."""
    double = RegistryDouble()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = double.answer(self.path, self.headers.get("Authorization"))
            content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """The tests look at `paths` instead."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    double.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield double
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def framed(schema_id: int, body: bytes, path: bytes = b"") -> bytes:
    """A payload in Confluent's wire format. path: of the Protobuf message, encoded."""
    return b"\0" + schema_id.to_bytes(4, "big") + path + body
