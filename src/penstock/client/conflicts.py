"""What a refused stream conflicts with: the server says that there is a conflict, and not with what.

The answer to a refused create or update is completed by one or two further requests. If these fail, the error
stays as the server worded it.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypeVar

from penstock.client.config import StreamConfig
from penstock.errors import AlreadyExistsError, ClientError, JetStreamError, SubjectsOverlapError
from penstock.protocol.subjects import overlaps

if TYPE_CHECKING:
    from penstock.client.jetstream import JetStream

T = TypeVar("T")

STREAM_EXISTS = 10058
# Fields with another value for "default" in what is stored than in what is sent.
_LIMITS = ("max_consumers", "max_msgs", "max_bytes", "max_msgs_per_subject", "max_msg_size")
_DEFAULT_WINDOW_S = 120.0


async def explained(js: JetStream, wanted: StreamConfig, answer: Awaitable[T]) -> T:
    """The answer to the creation or update of a stream.

    Raises AlreadyExistsError that lists what differs, SubjectsOverlapError that names the other streams, and
    what else `answer` raises.
    """
    try:
        return await answer
    except SubjectsOverlapError as error:
        raise await _overlap(js, wanted, error) from error
    except AlreadyExistsError as error:
        if error.err_code != STREAM_EXISTS:
            raise
        raise await _exists(js, wanted, error) from error


async def _overlap(js: JetStream, wanted: StreamConfig, error: SubjectsOverlapError) -> SubjectsOverlapError:
    found: dict[str, None] = {}
    texts = []
    try:
        for subject in wanted.subjects or [wanted.name]:
            async for info in js.streams(subject):
                name = info.config.name
                theirs = [one for one in info.config.subjects if overlaps(one, subject)]
                if name != wanted.name and theirs:
                    found[name] = None
                    texts.append(f"{subject!r} overlaps {', '.join(map(repr, theirs))} of stream {name!r}")
    except (ClientError, JetStreamError):
        return error
    if not texts:  # deleted meanwhile
        return error
    text = f"{error.description}: {'; '.join(texts)}"
    return SubjectsOverlapError(
        error.code, error.err_code, text, stream=error.stream, request=error.request, streams=list(found)
    )


async def _exists(js: JetStream, wanted: StreamConfig, error: AlreadyExistsError) -> AlreadyExistsError:
    try:
        found = (await js.stream_info(wanted.name)).config
    except (ClientError, JetStreamError):
        return error
    differing = differences(found, wanted)
    if not differing:
        return error
    text = f"{error.description}: stream {wanted.name!r}: {'; '.join(differing)}; use update_stream()"
    return AlreadyExistsError(error.code, error.err_code, text, stream=wanted.name, request=error.request)


def differences(found: StreamConfig, wanted: StreamConfig) -> list[str]:
    """What a stored configuration has otherwise than the wanted one, as `storage is file, not memory`."""
    texts = []
    for name in StreamConfig.__struct_fields__:
        is_, should = getattr(found, name), getattr(wanted, name)
        if name in _LIMITS:
            is_, should = is_ or -1, should or -1
        elif name == "num_replicas":
            is_, should = is_ or 1, should or 1
        elif name == "duplicate_window" and not should:
            should = min(_DEFAULT_WINDOW_S, wanted.max_age or _DEFAULT_WINDOW_S)
        elif name == "subjects":
            is_, should = (
                sorted(is_),
                sorted(should or ([] if wanted.mirror or wanted.sources else [wanted.name])),
            )
        elif name == "metadata":  # servers add keys of their own
            is_ = {key: value for key, value in is_.items() if not key.startswith("_nats.")}
        if is_ != should:
            texts.append(f"{name} is {_text(is_)}, not {_text(should)}")
    return texts


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if isinstance(value, str) else repr(value)
