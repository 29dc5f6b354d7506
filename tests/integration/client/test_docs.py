"""The client's documents: their examples run, and their tables have every name of nats-py."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nats.aio.client
import nats.aio.msg
import nats.aio.subscription
import nats.errors
import nats.js.client
import pytest

import penstock
from penstock import errors
from penstock.client import Client, ConnectOptions, JetStream, JsMsg, Subscription, keywords

pytestmark = pytest.mark.feature("client.misuse")

DOCS = Path(__file__).resolve().parents[3] / "docs"
SCRIPTS = [
    pytest.param(code, id=f"{page.stem}-{number}")
    for page in [DOCS / "index.md", *sorted(DOCS.glob("client-*.md"))]
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.S), 1)
]
WITHOUT_TLS = "Websocket not configured with TLS. DO NOT USE IN PRODUCTION!\n"  # the server's warning
TABLES = (DOCS / "coming-from-nats-py.md").read_text()


@pytest.mark.parametrize("code", SCRIPTS)
def test_an_example_prints_what_its_comments_say(code: str, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stderr.replace(WITHOUT_TLS, ""), done.returncode) == ("", 0)
    expected = re.findall(r"^ *print\(.*\)  # (.+)$", code, re.M)
    assert expected
    assert done.stdout.splitlines() == expected


def rows(title: str) -> dict[str, str]:
    """First column to second column of the table below a heading; names without their quotes."""
    section = re.split(rf"^#+ {re.escape(title)}\n", TABLES, flags=re.M)[1].split("\n#")[0]
    cells = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| `")]
    return {theirs.strip(" `"): ours.strip(" `") for theirs, ours in cells}


def test_the_table_of_connect_has_all_keywords_of_nats_py_and_ours_exist() -> None:
    table = rows("Keywords of `connect`")
    theirs = set(inspect.signature(nats.aio.client.Client.connect).parameters) - {"self"}
    assert set(table) == theirs
    assert set(table.values()) - {"", "servers"} <= set(ConnectOptions.__annotations__)


def test_each_keyword_of_nats_py_that_is_not_ours_is_explained_by_the_error() -> None:
    for theirs in rows("Keywords of `connect`"):
        if theirs in ConnectOptions.__annotations__ or theirs == "servers":
            continue
        with pytest.raises(TypeError, match=f"instead of nats-py's {theirs} use "):
            penstock.connect(**{theirs: None})
        assert theirs in keywords.CONNECT


SAME = {  # constants and classes of the implementation, and what another table has
    "Client": {"CLOSED", "CONNECTED", "CONNECTING", "DISCONNECTED", "DRAINING_PUBS", "DRAINING_SUBS",
               "RECONNECTING", "msg_class"},
    "Msg": {"Ack", "Metadata"},
    "JetStreamContext": {"PullSubscription", "PushSubscription", "is_status_msg"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("theirs", "ours", "title", "hints"),
    [
        (nats.aio.client.Client, Client, "Client", keywords.CLIENT),
        (nats.aio.subscription.Subscription, Subscription, "Subscription", keywords.SUBSCRIPTION),
        (nats.aio.msg.Msg, JsMsg, "Message", keywords.MESSAGE),
        (nats.js.client.JetStreamContext, JetStream, "JetStream", keywords.JETSTREAM),
    ],
)
def test_each_attribute_of_nats_py_is_ours_or_explained_by_table_and_error(
    theirs: type, ours: type, title: str, hints: dict[str, str]
) -> None:
    table = rows(title)
    assert {name for name in table.values() if name and not hasattr(ours, name)} <= {"penstock.connect"}
    lacking = {name for name in dir(theirs) if not name.startswith("_") and not hasattr(ours, name)}
    lacking -= SAME.get(theirs.__name__, set())
    assert lacking <= set(table)
    assert lacking - {"connect"} <= set(hints)
    bare = object.__new__(ours)
    for name in lacking - {"connect"}:
        with pytest.raises(AttributeError, match=f"instead of nats-py's {name} use "):
            getattr(bare, name)


def test_the_traceback_of_a_misspelt_attribute_names_a_similar_one() -> None:
    code = "from penstock.client import Client; object.__new__(Client).publsh"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    *_, last = run.stderr.splitlines()
    assert last == "AttributeError: 'Client' object has no attribute 'publsh'. Did you mean: 'publish'?"


def test_attributes_of_nats_py_are_not_among_those_of_an_object() -> None:
    assert not {"jsm", "is_draining"} & set(dir(object.__new__(Client)))
    assert not hasattr(Client, "jsm")


def test_a_private_attribute_that_is_not_there_has_no_hint() -> None:
    bare: Any = object.__new__(Client)
    with pytest.raises(AttributeError, match=r"no attribute '_private'$"):
        bare._private  # noqa: B018


def test_each_error_of_the_table_exists() -> None:
    table = rows("Errors")
    assert all(issubclass(getattr(errors, name), errors.PenstockError) for name in table.values())
    known = {name for name in dir(nats.errors) if name.endswith(("Error", "EOF")) and name != "Error"}
    unlike = {"BadHeaderError", "BadTimeoutError", "JsonParseError", "InvalidCallbackTypeError",
              "SecureConnFailedError", "SecureConnRequiredError", "SecureConnWantedError",
              "ServerNotInPoolError", "TimeoutError"}  # fmt: skip
    assert known - unlike <= set(table)
