"""Types of the callbacks of `penstock.sync`, by the names that they have in the async client.

A callback runs in a thread of its own and may block; what it raises goes to `on_error`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from penstock.client.message import Payload

if TYPE_CHECKING:
    from penstock.sync.sync_client import Client
    from penstock.sync.sync_messages import JsMsg, Msg, ServiceMsg

MessageCallback: TypeAlias = "Callable[[Msg], object]"
JsMessageCallback: TypeAlias = "Callable[[JsMsg], object]"
ServiceHandler: TypeAlias = "Callable[[ServiceMsg], Payload | None]"
Sentinel: TypeAlias = "Callable[[Msg], bool]"
ClientCallback: TypeAlias = "Callable[[Client], object]"
ErrorCallback: TypeAlias = "Callable[[Client, Exception], object]"
TokenCallback: TypeAlias = Callable[[], str]
Secret: TypeAlias = str | TokenCallback
SignatureCallback: TypeAlias = Callable[[str], bytes]
HeaderMap: TypeAlias = Mapping[str, "str | Iterable[str]"]
WebsocketHeaders: TypeAlias = HeaderMap | Callable[[], HeaderMap]
ObjectData: TypeAlias = Payload | PathLike[str] | IO[bytes] | Iterable[bytes]
Decorated: TypeAlias = Callable[..., Any]
