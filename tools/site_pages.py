"""Pages of the documentation site that are made from the code: options, errors, and the API reference.

Option tables come from the classes that hold the options: a field, its type, its default and the text below
it. They are read from the source text, as the markers of tests are (feature_table.py): no page can say
another default than the code, and nothing needs compiled kernels or an extra. The names of the reference are
listed here, so that a page tells what belongs together; a test compares them with the public names.

site_hooks.py gives the pages to mkdocs.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src"


class Options(NamedTuple):
    """A table of options. module, name: the class that holds them. intro: text before the table."""

    title: str
    module: str
    name: str
    intro: str


CLIENT_OPTIONS = (
    Options(
        "connect",
        "penstock.client.options",
        "Options",
        "Keyword arguments of `penstock.connect` and `penstock.sync.connect`. Times are seconds.",
    ),
    Options(
        "Streams",
        "penstock.client.config",
        "StreamConfig",
        "Keyword arguments of `create_stream` and `update_stream`, and fields of `StreamConfig`. Durations "
        "are seconds, or a `timedelta`; enums may be given as text.",
    ),
    Options(
        "Consumers",
        "penstock.client.config",
        "ConsumerConfig",
        "Keyword arguments of `create_consumer` and `update_consumer`, and fields of `ConsumerConfig`.",
    ),
    Options(
        "Key-value buckets",
        "penstock.client.keyvalue.bucket_config",
        "KeyValueConfig",
        "Keyword arguments of `create_key_value` and `update_key_value`, and fields of `KeyValueConfig`.",
    ),
    Options(
        "Object stores",
        "penstock.client.objectstore.object_config",
        "ObjectStoreConfig",
        "Keyword arguments of `create_object_store` and `update_object_store`, and fields of "
        "`ObjectStoreConfig`.",
    ),
)

SERVER_OPTIONS = tuple(
    Options(title, f"penstock.server.config.{module}", name, intro)
    for title, module, name, intro in (
        (
            "Server",
            "server_options",
            "ServerOptions",
            "An option's text ends with its configuration key.",
        ),
        ("JetStream", "jetstream_options", "JetStreamOptions", "The block `jetstream`."),
        ("Accounts", "server_options", "AccountOptions", "An account of the block `accounts`."),
        ("TLS", "tls_options", "TlsOptions", "A block `tls`."),
        ("WebSocket", "websocket_options", "WebsocketOptions", "The block `websocket`."),
        ("Web page", "web_options", "WebOptions", "The block `web`."),
        ("Cluster", "cluster_options", "ClusterOptions", "The block `cluster`."),
        ("Leaf nodes", "leaf_options", "LeafOptions", "The block `leafnodes`."),
        ("Hubs of leaf nodes", "leaf_options", "LeafRemoteOptions", "An entry of `leafnodes.remotes`."),
        ("Auth callout", "server_options", "CalloutOptions", "The block `authorization.auth_callout`."),
        ("Resolver", "server_options", "ResolverOptions", "The block `resolver`."),
    )
)

CLIENT_NAMES: dict[str, tuple[str, tuple[str, ...]]] = {
    "connection": (
        "Connection and core messages",
        ("connect", "Connecting", "ConnectOptions", "Options", "Client", "ClientState", "ClientStats",
         "ServerInfo", "ServerCandidate", "Msg", "Headers", "Subscription", "Codec", "Tracing"),
    ),
    "streams": (
        "Streams",
        ("JetStream", "AccountInfo", "Stream", "StreamConfig", "StreamSettings", "StreamInfo",
         "StoredMessage", "StreamConsumerLimits", "StreamSource", "StreamSourceInfo", "ExternalStream",
         "Placement", "SubjectTransform", "Republish", "StorageType", "RetentionPolicy", "DiscardPolicy"),
    ),
    "publishing": (
        "Publishing to streams",
        ("PubAck", "PublishOptions", "Publisher", "PendingAck", "AtomicBatch", "FastIngest", "FastPublisher",
         "FastPubAck", "FastPendingAck"),
    ),
    "consumers": (
        "Consumers",
        ("Consumer", "ConsumerConfig", "ConsumerSettings", "ConsumerInfo", "ConsumerPause", "AckPolicy",
         "DeliverPolicy", "ReplayPolicy", "PriorityOptions", "JsMsg", "Fetch", "Consume", "OrderedConsumer",
         "OrderedConsumerSettings", "OrderedConsume", "PushSubscription", "OrderedPushSubscription"),
    ),
    "key-value": (
        "Key-value",
        ("KeyValue", "KeyValueConfig", "KeyValueSettings", "KeyValueStatus", "KeyValueEntry", "KeyOperation",
         "KeyValueBatch", "KeyWatcher", "KeyLock", "KeyLease", "LeaderElection"),
    ),
    "object-store": (
        "Object store",
        ("ObjectStore", "ObjectStoreConfig", "ObjectStoreSettings", "ObjectStoreStatus", "ObjectInfo",
         "ObjectLink", "ObjectReader", "ObjectWatcher"),
    ),
    "services": (
        "Services",
        ("Services", "Service", "ServiceGroup", "ServiceEndpoint", "ServiceMsg", "ServicePing", "ServiceInfo",
         "ServiceStats", "EndpointInfo", "EndpointStats", "EndpointSchema"),
    ),
}  # fmt: skip
"""Page of the reference -> its title, and the names of penstock.client on it."""

OTHER_MODULES: dict[str, tuple[str, str, tuple[str, ...] | None]] = {
    "sync": ("Without async", "penstock.sync", ("connect", "Client")),
    "server": ("Server", "penstock.server", ("Server",)),
    "testing": ("Testing", "penstock.testing", None),
    "spark": ("Spark", "penstock.spark", None),
}
"""Page -> its title, a module, and the names of it; None: all that it exports."""

SYNC_INTRO = (
    "The classes of `penstock.sync` have the names, parameters and texts of those of `penstock.client`, "
    "which the other pages describe: a call that is awaited there blocks here. This page has `connect` and "
    "the client."
)


ERRORS_INTRO = (
    "Every exception that penstock raises on purpose is a `penstock.errors.PenstockError`. The type says "
    "whose fault it is; the text says what was asked, what was found and what to do."
)


class Field(NamedTuple):
    """An option. text: what is written below it, on one line."""

    name: str
    type: str
    default: str
    text: str


def tree_of(module: str) -> ast.Module:
    base = SOURCES.joinpath(*module.split("."))
    path = base.with_suffix(".py") if base.with_suffix(".py").exists() else base / "__init__.py"
    return ast.parse(path.read_text(encoding="utf-8"))


def class_of(module: str, name: str) -> ast.ClassDef:
    [found] = [node for node in tree_of(module).body if isinstance(node, ast.ClassDef) and node.name == name]
    return found


def default_of(value: ast.expr | None) -> str:
    """A default as it is written; the one of `field(default=...)`."""
    if value is None:
        return "required"
    if isinstance(value, ast.Call) and ast.unparse(value.func) in ("field", "msgspec.field"):
        given = {keyword.arg: keyword.value for keyword in value.keywords}
        factory = given.get("default_factory")
        return ast.unparse(given["default"]) if factory is None else f"{ast.unparse(factory)}()"
    return ast.unparse(value)


def fields(module: str, name: str) -> Iterator[Field]:
    """The options of a class, in its order."""
    body = class_of(module, name).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if node.target.id.startswith("_") or "ClassVar" in ast.unparse(node.annotation):
            continue
        text = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            text = " ".join(str(after.value.value).split())
        kind = node.annotation
        shown = kind.value if isinstance(kind, ast.Constant) else ast.unparse(kind)
        yield Field(node.target.id, str(shown), default_of(node.value), text)


def cell(text: str) -> str:
    """Text in a cell of a table."""
    return text.replace("|", "\\|")


def option_table(options: Options) -> str:
    rows = [
        f"| `{one.name}` | `{cell(one.type)}` | `{cell(one.default)}` | {cell(one.text)} |"
        for one in fields(options.module, options.name)
    ]
    head = [
        f"## {options.title}",
        "",
        options.intro,
        "",
        "| option | type | default | |",
        "|---|---|---|---|",
    ]
    return "\n".join([*head, *rows, ""])


def option_page(title: str, tables: tuple[Options, ...]) -> str:
    return "\n".join([f"# {title}", "", *map(option_table, tables)])


def error_classes() -> Iterator[ast.ClassDef]:
    for node in tree_of("penstock.errors").body:
        if isinstance(node, ast.ClassDef):
            yield node


def error_page() -> str:
    """Every exception with its bases and its text, then the numbers that servers send."""
    lines = [
        "# Errors",
        "",
        ERRORS_INTRO,
        "",
        "| exception | base | when |",
        "|---|---|---|",
    ]
    for node in error_classes():
        bases = ", ".join(f"`{ast.unparse(base)}`" for base in node.bases)
        text = " ".join((ast.get_docstring(node) or "").split())
        lines.append(f"| `{node.name}` | {bases} | {cell(text)} |")
    lines += [
        "",
        "## Numbers of JetStream errors",
        "",
        "`JetStreamApiError` has the number as `err_code`, the status as `code`, the text as `description`.",
        "",
        "| err_code | code | name | description |",
        "|---|---|---|---|",
    ]
    for error in json.loads((ROOT / "schemas" / "errors.json").read_text(encoding="utf-8")):
        text = cell(error["description"])
        lines.append(f"| {error['err_code']} | {error['code']} | {error['name']} | {text} |")
    return "\n".join([*lines, ""])


def exported(module: str) -> list[str]:
    """The names in `__all__` of a module."""
    for node in tree_of(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


def reference_page(title: str, module: str, names: Iterable[str], intro: str = "") -> str:
    """A page that has mkdocstrings write the documentation of these names."""
    return "\n".join([f"# {title}", "", intro, "", *(f"::: {module}.{name}\n" for name in names)])


def reference_pages() -> Iterator[tuple[str, str]]:
    for page, (title, names) in CLIENT_NAMES.items():
        yield f"reference/{page}.md", reference_page(title, "penstock.client", names)
    for page, (title, module, chosen) in OTHER_MODULES.items():
        intro = SYNC_INTRO if page == "sync" else ""
        yield f"reference/{page}.md", reference_page(title, module, chosen or exported(module), intro)


def pages() -> dict[str, str]:
    """Path of a page below docs/ -> its Markdown."""
    return {
        "options-client.md": option_page("Options of the client", CLIENT_OPTIONS),
        "options-server.md": option_page("Options of the server", SERVER_OPTIONS),
        "errors.md": error_page(),
        **dict(reference_pages()),
    }
