"""`verify_and_map`: the same certificates are the same users on ours and on the official server."""

from __future__ import annotations

import json
import socket
import ssl
from pathlib import Path

import pytest
import trustme

from tests.support.certificates import client_certificate
from tests.support.conf_servers import running_conf
from tests.support.nats_servers import KINDS

pytestmark = pytest.mark.feature("security.tls-users")

JOE = (("C", "US"), ("O", "acme"), ("CN", "joe"))
ANN = (("DC", "org"), ("DC", "acme"), ("OU", "b"), ("CN", "ann"))
USERS = [
    "joe@example.com", "host.example.com", "spiffe://example/joe", "CN=joe, O=acme, C=US",
    "DC=acme,DC=org,OU=b,CN=ann", "CN=sam",
]  # fmt: skip


def who(port: int, files: Path, ca: str, **connect: str) -> str:
    """The user that a server takes the client with a certificate for; or the text of its -ERR."""
    context = ssl.create_default_context(cafile=ca)
    context.load_cert_chain(files / "cert.pem", files / "key.pem")
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
        info = plain.recv(4096)
        assert json.loads(info.split(b" ", 1)[1])["tls_verify"]
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as sock:
            settings = {"verbose": False, "pedantic": False, "headers": True, **connect}
            sock.sendall(b"CONNECT " + json.dumps(settings).encode() + b"\r\n")
            sock.sendall(b"SUB r 1\r\nPUB $SYS.REQ.USER.INFO r 0\r\n\r\n")
            data = b""
            while b"\r\n" not in data or (b"MSG" in data and data.count(b"\r\n") < 2):
                data += sock.recv(8192)
            if data.startswith(b"-ERR"):
                return data.decode().strip()
            return str(json.loads(data.split(b"\r\n")[1])["data"]["user"])


@pytest.mark.parametrize("kind", KINDS)
def test_certificates_say_who_a_client_is(kind: str, tmp_path: Path) -> None:
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1")
    paths = {name: tmp_path / f"{name}.pem" for name in ("ca", "server", "key")}
    authority.cert_pem.write_to_path(str(paths["ca"]))
    server.cert_chain_pems[0].write_to_path(str(paths["server"]))
    server.private_key_pem.write_to_path(str(paths["key"]))
    users = "".join(f'{{ user: "{name}" }}\n' for name in USERS)
    conf = f"""
    tls {{
        cert_file: "{paths["server"]}", key_file: "{paths["key"]}", ca_file: "{paths["ca"]}"
        verify_and_map: true, timeout: 5
    }}
    authorization {{ users: [ {users} {{ user: "locked@example.com", password: "secret" }} ] }}
    """
    refused = "-ERR 'Authorization Violation'"
    cases: list[tuple[tuple[tuple[str, str], ...], dict[str, list[str]], dict[str, str], str]] = [
        (JOE, {"emails": ["other@example.com", "joe@example.com"]}, {}, "joe@example.com"),
        (JOE, {"dns": ["host.example.com"]}, {}, "host.example.com"),
        (JOE, {"uris": ["spiffe://example/joe"]}, {}, "spiffe://example/joe"),
        (JOE, {}, {}, "CN=joe, O=acme, C=US"),
        (ANN, {}, {}, "DC=acme,DC=org,OU=b,CN=ann"),
        ((("DC", "org"), ("CN", "sam")), {}, {}, "CN=sam"),
        ((("CN", "nobody"),), {}, {}, refused),
        ((("CN", "nobody"),), {}, {"user": "joe@example.com", "pass": ""}, refused),
        (JOE, {"emails": ["locked@example.com"]}, {"user": "x", "pass": "secret"}, "locked@example.com"),
        (JOE, {"emails": ["locked@example.com"]}, {}, refused),
    ]
    with running_conf(kind, conf, tmp_path / "server_dir") as port:
        for subject, names, connect, expected in cases:
            made = client_certificate(subject, authority=authority, **names)
            (tmp_path / "cert.pem").write_bytes(made.cert)
            (tmp_path / "client").mkdir(exist_ok=True)
            (tmp_path / "client/cert.pem").write_bytes(made.cert)
            (tmp_path / "client/key.pem").write_bytes(made.key)
            assert who(port, tmp_path / "client", str(paths["ca"]), **connect) == expected, (subject, names)
