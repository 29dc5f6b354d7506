"""Checks on Spark's driver, before a task starts: does a read or write fit its streams, is it permitted?

A task that fails is run four times, and its error comes from an executor. So whatever a few requests can
find is found before: a subject that the stream does not have, a stream that option `access` can't read, and
missing permissions.

A read is tried with a consumer that delivers nothing (it starts after the last message), because no request
tells whether one may be created. Trying a write would leave a message, so the user's permissions are
requested from the server (`$SYS.REQ.USER.INFO`) and compared with the subjects. Where a server does not
answer that, the first task finds out.

Invariants: checks store nothing and leave no consumer behind; they raise only what a task would raise sooner
or later.
"""

from __future__ import annotations

import contextlib
import re

import msgspec

from penstock import errors
from penstock.protocol import api, subjects
from penstock.spark.range_sessions import create_consumer, delete_consumer, new_consumer_name
from penstock.spark.sink_options import SinkOptions, SubjectTemplate
from penstock.spark.source_options import SourceOptions
from penstock.spark.wire import BlockingConnection

USER_INFO = "$SYS.REQ.USER.INFO"
USER_INFO_TIMEOUT_S = 2.0
PROBE_INACTIVE_NS = 5_000_000_000
_SHOWN = 5


# --- reads


def check_read(connection: BlockingConnection, options: SourceOptions, info: api.StreamInfoResponse) -> None:
    """Check that tasks can read a stream.

    info: the stream's. Raises ConfigError if `access` does not fit it, PermissionsError (names the missing
    right), and what `BlockingConnection.api` raises.
    """
    stream = info.config.name
    _next_message(connection, stream, info.state.last_seq + 1, ">")  # tasks ask this at the end of a range
    if options.access == "direct":
        _check_direct(connection, info)
    elif options.durable is not None and _wants_acks(info.config):
        _check_claimed(connection, info)
    else:
        _check_consumer(connection, options, info)


def _next_message(connection: BlockingConnection, stream: str, seq: int, subject: str) -> bool:
    """Whether the stream has a message of `subject` at or after `seq`."""
    request = api.MsgGetRequest(seq=seq, next_by_subj=subject)
    try:
        connection.api(api.MsgGetResponse, f"STREAM.MSG.GET.{stream}", request)
    except errors.MessageNotFoundError:
        return False
    return True


def check_subjects(
    connection: BlockingConnection, options: SourceOptions, infos: list[api.StreamInfoResponse]
) -> None:
    """Raises ConfigError for a subject in the options that none of the streams has or had."""
    for subject in options.subjects:
        if not any(_may_have(connection, info, subject) for info in infos):
            names = ", ".join(info.config.name for info in infos)
            has = _shown([one for info in infos for one in info.config.subjects])
            raise errors.ConfigError(
                f"option 'subject': {subject!r} matches no subject of stream {names}, which has {has}"
            )


def _may_have(connection: BlockingConnection, info: api.StreamInfoResponse, subject: str) -> bool:
    config = info.config
    return (
        not has_own_subjects(config)
        or any(subjects.overlaps(subject, one) for one in config.subjects)
        or _next_message(connection, config.name, max(1, info.state.first_seq), subject)
    )


def _check_direct(connection: BlockingConnection, info: api.StreamInfoResponse) -> None:
    stream = info.config.name
    if not info.config.allow_direct:
        raise errors.ConfigError(
            f"option 'access' is direct, and stream {stream!r} has no allow_direct: set it "
            f"(`nats stream edit {stream} --allow-direct`)"
            + ("" if _wants_acks(info.config) else ", or leave option 'access' out")
        )
    body = api.encode(api.MsgGetRequest(seq=info.state.last_seq + 1, next_by_subj=">"))
    subject = f"{connection.options.api_prefix}.DIRECT.GET.{stream}"
    with contextlib.suppress(errors.NoRespondersError):  # replicas start to answer a moment after the leader
        connection.request(subject, body)


def _check_claimed(connection: BlockingConnection, info: api.StreamInfoResponse) -> None:
    """Tasks read the claims of a durable consumer on a work queue by direct gets."""
    stream = info.config.name
    if not info.config.allow_direct:
        raise errors.ConfigError(
            f"option 'durable': stream {stream!r} is a work queue, whose messages tasks read by direct gets: "
            f"set its allow_direct (`nats stream edit {stream} --allow-direct`)"
        )
    _check_direct(connection, info)


def _check_consumer(
    connection: BlockingConnection, options: SourceOptions, info: api.StreamInfoResponse
) -> None:
    stream = info.config.name
    if _wants_acks(info.config):
        raise errors.ConfigError(work_queue_advice(stream, has_direct=info.config.allow_direct))
    config = api.ApiConsumerConfig(
        name=new_consumer_name(),
        deliver_policy=api.DeliverPolicy.NEW,
        ack_policy=api.AckPolicy.NONE,
        filter_subject=options.filter_subject,
        filter_subjects=options.filter_subjects,
        mem_storage=True,
        num_replicas=1,
        inactive_threshold=PROBE_INACTIVE_NS,
    )
    name = create_consumer(connection, stream, config).name
    try:
        body = api.encode(api.PullRequest(batch=1, no_wait=True))
        connection.request(f"{connection.options.api_prefix}.CONSUMER.MSG.NEXT.{stream}.{name}", body)
    finally:
        with contextlib.suppress(errors.PenstockError):
            delete_consumer(connection, stream, name)


def _wants_acks(config: api.ApiStreamConfig) -> bool:
    """Whether the stream takes consumers with acks only: each message of a work queue goes to one of them."""
    return config.retention == api.RetentionPolicy.WORKQUEUE


def work_queue_advice(stream: str, *, has_direct: bool) -> str:
    """How to read a work queue, as text of an error."""
    steps = "set option 'access' to direct"
    if not has_direct:
        steps = (
            f"set the stream's allow_direct (`nats stream edit {stream} --allow-direct`) and option 'access' "
            "to direct"
        )
    return (
        f"stream {stream!r} is a work queue, whose messages are for one consumer that acks them: to read "
        f"them without removing them, {steps}; or let a second stream source it, and read that one"
    )


# --- writes


def check_write(connection: BlockingConnection, options: SinkOptions, config: api.ApiStreamConfig) -> None:
    """Check that rows can be published to a stream, as far as option `subject` says to which subjects.

    config: the stream's. Raises ConfigError if the stream has no such subject, PermissionsError if the user
    may publish to none of them.
    """
    stream = options.stream
    subject = target_filter(options.subject)
    if subject is not None:
        taken = any(subjects.overlaps(subject, one) for one in config.subjects)
        if not taken:
            raise errors.ConfigError(
                f"option 'subject': no row can be stored in stream {stream!r}, which has the subjects "
                f"{_shown(config.subjects) or 'of its sources only'}; rows would be published to {subject!r}"
            )
        _check_publish(connection, subject, stream)
    if options.marker_subject is not None and not any(
        subjects.overlaps(f"{options.marker_subject}.*.*", one) for one in config.subjects
    ):
        raise errors.ConfigError(
            f"option 'markerSubject': {options.marker_subject!r} is none of stream {stream!r}, which has the "
            f"subjects {_shown(config.subjects)}"
        )


def target_filter(template: SubjectTemplate | None) -> str | None:
    """A filter that matches every subject of a template, `orders.>` for `orders.{id}`; None if any matches.

    A column may hold several tokens, so whatever follows the first one is open.
    """
    if template is None:
        return None
    if not template.columns:
        literal = template.texts[0]
        return literal if subjects.is_valid_subject(literal) else None
    tokens = template.texts[0].split(".")[:-1]
    found = ".".join([*tokens, ">"])
    return found if tokens and subjects.is_valid_filter(found) else None


class _Permission(msgspec.Struct):
    allow: list[str] | None = None
    deny: list[str] | None = None


class _Permissions(msgspec.Struct):
    publish: _Permission | None = None


class _User(msgspec.Struct):
    user: str = ""
    permissions: _Permissions | None = None


class _UserInfo(msgspec.Struct):
    data: _User | None = None


def _check_publish(connection: BlockingConnection, subject: str, stream: str) -> None:
    try:
        answer = connection.request(USER_INFO, b"", USER_INFO_TIMEOUT_S)
        user = msgspec.json.decode(answer, type=_UserInfo).data
    except (
        errors.PermissionsError,
        errors.NoRespondersError,
        errors.RequestTimeoutError,
        msgspec.DecodeError,
    ):
        return
    if user is None or user.permissions is None or user.permissions.publish is None:
        return
    given = user.permissions.publish
    allowed = [_subject_of(one) for one in given.allow or []]
    denied = [_subject_of(one) for one in given.deny or []]
    is_allowed = not allowed or any(subjects.overlaps(subject, one) for one in allowed)
    if is_allowed and not any(subjects.is_subset(subject, one) for one in denied):
        return
    raise errors.PermissionsError(
        f"user {user.user!r} may not publish to {subject!r}, the subjects of the rows for stream {stream!r} "
        f"(allowed: {_shown(allowed) or 'all'}; denied: {_shown(denied) or 'none'}): grant that right, or "
        "connect as another user",
        operation=f"publish to {subject}",
        subject=subject,
    )


def _subject_of(permission: str) -> str:
    """The subject of a permission, which may have a queue group after it."""
    return re.split(r"\s", permission, maxsplit=1)[0]


# --- both


def has_own_subjects(config: api.ApiStreamConfig) -> bool:
    """Whether a stream's messages have its subjects: no other stream's messages are copied into it."""
    return (
        bool(config.subjects)
        and config.mirror is None
        and not config.sources
        and not config.subject_transform
    )


def _shown(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
