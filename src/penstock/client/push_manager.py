"""Subscribing to push consumers: finding the stream, and creating the consumer or binding to an existing one.

Invariant: the deliver subject is subscribed before its consumer is created, so that no message is sent to a
subject without interest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Never, Unpack

from penstock.client import keywords
from penstock.client.config import ConsumerConfig, ConsumerInfo, make_config
from penstock.client.consume import JsMessageCallback, WarningCallback
from penstock.client.ordered import INACTIVE_THRESHOLD, SETTINGS
from penstock.client.push_subscription import (
    IDLE_HEARTBEAT_S,
    OrderedPushSubscription,
    PushOptions,
    PushSubscription,
)
from penstock.client.requests import new_nuid
from penstock.client.settings import ConsumerSettings
from penstock.errors import AlreadyExistsError, ConsumerNotFoundError, MisuseError, NoStreamError
from penstock.protocol.api import AckPolicy
from penstock.protocol.subjects import check_filter

if TYPE_CHECKING:
    from penstock.client.jetstream import JetStream

OPTIONS = (
    "queue", "durable", "stream", "callback", "ordered", "auto_ack", "max_pending_messages",
    "max_pending_bytes", "on_warning",
)  # fmt: skip


class PushManager(keywords.NatsPyNames, ABC):
    """Subscriptions to push consumers."""

    nats_py_names = keywords.JETSTREAM

    @abstractmethod
    def _context(self) -> JetStream:
        """The context that sends the requests."""

    async def subscribe(
        self,
        subject: str,
        *,
        queue: str = "",
        durable: str = "",
        stream: str = "",
        callback: JsMessageCallback | None = None,
        ordered: bool = False,
        auto_ack: bool = False,
        max_pending_messages: int | None = None,
        max_pending_bytes: int | None = None,
        on_warning: WarningCallback | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> PushSubscription:
        """Subscribe to a push consumer for a subject, which is created unless `durable` exists.

        stream: default the one that stores the subject. durable: name of a consumer that stays; without it,
        the consumer ends with the subscription. queue: share the messages of one durable consumer (default
        name: the queue group's). ordered: all messages in order without acks, see `OrderedPushSubscription`.
        callback: as for `Client.subscribe`; auto_ack: ack each message that it has processed.
        max_pending_*: limits of the queue of unread messages, default the client's options.
        on_warning: called with missed heartbeats and gaps; default the client's on_error.
        settings: fields of ConsumerConfig. Defaults: ack_policy "explicit", flow control and a heartbeat
        every 5 s (neither with a queue group).

        Raises NoStreamError, MisuseError for options that contradict each other or an existing consumer, and
        JetStreamApiError.
        """
        js = self._context()
        check_filter(subject)
        given: dict[str, Any] = dict(settings)
        self._check_settings(given)
        if ordered and (queue or durable or auto_ack):
            raise MisuseError("an ordered subscription has no queue, durable name and acks")
        if auto_ack and callback is None:
            raise MisuseError("auto_ack acks what a callback has processed; without one, call msg.ack()")
        options = self._options(max_pending_messages, max_pending_bytes, auto_ack, on_warning)
        name = stream or await self._stream_of(subject)
        if ordered:
            return await _open_ordered(js, name, subject, options, callback, given)
        durable = durable or queue
        if durable:
            info = await self._existing(name, durable)
            if info is not None:
                _check_same(info, {**given, **_filter(subject, given)})
                return _bound(js, info, queue, options, callback)
        return await self._create(name, subject, durable, queue, options, callback, given)

    async def bind(
        self,
        stream: str,
        consumer: str,
        *,
        callback: JsMessageCallback | None = None,
        auto_ack: bool = False,
        max_pending_messages: int | None = None,
        max_pending_bytes: int | None = None,
        on_warning: WarningCallback | None = None,
        **unknown: Never,
    ) -> PushSubscription:
        """Subscribe to an existing push consumer, with its queue group if it has one.

        Options as for `subscribe`. Raises ConsumerNotFoundError, and MisuseError for a pull consumer or one
        that is bound to another subscription.
        """
        if unknown:
            raise keywords.unknown_keyword("bind", unknown, OPTIONS, keywords.PUSH)
        if auto_ack and callback is None:
            raise MisuseError("auto_ack acks what a callback has processed; without one, call msg.ack()")
        js = self._context()
        info = (await js.consumer(stream, consumer)).cached_info
        options = self._options(max_pending_messages, max_pending_bytes, auto_ack, on_warning)
        return _bound(js, info, info.config.deliver_group, options, callback)

    @staticmethod
    def _check_settings(settings: dict[str, Any]) -> None:
        fields = ConsumerConfig.__struct_fields__
        unknown = [name for name in settings if name not in fields]
        if unknown:
            raise keywords.unknown_keyword("subscribe", unknown, (*OPTIONS, *fields), keywords.PUSH)

    def _options(
        self, messages: int | None, size: int | None, auto_ack: bool, on_warning: WarningCallback | None
    ) -> PushOptions:
        defaults = self._context().session.options
        return PushOptions(
            max_pending_messages=messages or defaults.max_pending_messages,
            max_pending_bytes=size or defaults.max_pending_bytes,
            auto_ack=auto_ack,
            on_warning=on_warning,
        )

    async def _stream_of(self, subject: str) -> str:
        found = await self._context().stream_names(subject)
        if not found:
            raise NoStreamError(subject)
        if len(found) > 1:
            raise MisuseError(f"{subject!r} is in streams {', '.join(sorted(found))}: give stream=")
        return found[0]

    async def _existing(self, stream: str, durable: str) -> ConsumerInfo | None:
        try:
            return (await self._context().consumer(stream, durable)).cached_info
        except ConsumerNotFoundError:
            return None

    async def _create(
        self,
        stream: str,
        subject: str,
        durable: str,
        queue: str,
        options: PushOptions,
        callback: JsMessageCallback | None,
        settings: dict[str, Any],
    ) -> PushSubscription:
        js = self._context()
        deliver_subject = js.session.new_inbox()
        # The official server refuses heartbeats and flow control of queue groups: each goes to one member.
        alive = {} if queue else {"idle_heartbeat": IDLE_HEARTBEAT_S, "flow_control": True}
        config = make_config(
            ConsumerConfig,
            {
                "name": durable or new_nuid(),
                "durable_name": durable,
                "deliver_subject": deliver_subject,
                "deliver_group": queue,
                "ack_policy": AckPolicy.EXPLICIT,
                **alive,
                **_filter(subject, settings),
                **settings,
            },
        )
        made = PushSubscription(js, stream, replace(options, owned=not durable))
        made.open(config.deliver_subject, queue)
        try:
            info = (await js.create_consumer(stream, config)).cached_info
        except AlreadyExistsError:
            made.abandon()
            found = await self._existing(stream, durable)  # made by another member meanwhile
            if found is None:
                raise
            return _bound(js, found, queue, options, callback)
        except BaseException:
            made.abandon()
            raise
        made.start(info, callback)
        return made


def _filter(subject: str, settings: dict[str, Any]) -> dict[str, Any]:
    given = "filter_subject" in settings or "filter_subjects" in settings
    return {} if given else {"filter_subject": subject}


def _bound(
    js: JetStream, info: ConsumerInfo, queue: str, options: PushOptions, callback: JsMessageCallback | None
) -> PushSubscription:
    """A subscription to an existing consumer. Raises MisuseError if it can not have one."""
    config, what = info.config, f"consumer {info.name!r} of stream {info.stream_name!r}"
    if not config.deliver_subject:
        raise MisuseError(f"{what} is a pull consumer: read it with js.consumer(...) and fetch or consume")
    if config.deliver_group != queue:
        group = f"queue group {config.deliver_group!r}" if config.deliver_group else "no queue group"
        raise MisuseError(f"{what} has {group}, not {queue!r}")
    if info.push_bound and not queue:
        raise MisuseError(f"{what} is bound to another subscription; a queue group shares its messages")
    made = PushSubscription(js, info.stream_name, options)
    made.open(config.deliver_subject, queue)
    made.start(info, callback)
    return made


def _check_same(info: ConsumerInfo, settings: dict[str, Any]) -> None:
    """Raises MisuseError if an existing consumer has another configuration than is asked for."""
    wanted = make_config(ConsumerConfig, settings, info.config)
    differing = [
        f"{name} is {getattr(info.config, name)!r}, not {getattr(wanted, name)!r}"
        for name in settings
        if getattr(info.config, name) != getattr(wanted, name)
    ]
    if differing:
        text = f"consumer {info.name!r} of stream {info.stream_name!r} exists with another configuration"
        raise MisuseError(f"{text} ({'; '.join(differing)}): use bind(), or update_consumer()")


async def _open_ordered(
    js: JetStream,
    stream: str,
    subject: str,
    options: PushOptions,
    callback: JsMessageCallback | None,
    settings: dict[str, Any],
) -> OrderedPushSubscription:
    for name in settings:
        if name not in SETTINGS and name != "idle_heartbeat":
            raise MisuseError(f"an ordered subscription has no setting {name!r}")
    base = make_config(
        ConsumerConfig,
        {
            "idle_heartbeat": IDLE_HEARTBEAT_S,
            "inactive_threshold": INACTIVE_THRESHOLD,
            **_filter(subject, settings),
            **settings,
            "flow_control": True,
            "ack_policy": AckPolicy.NONE,
            "max_deliver": 1,
            "mem_storage": True,
            "num_replicas": 1,
        },
    )
    made = OrderedPushSubscription(js, stream, replace(options, owned=True), base)
    try:
        info = await made.renew()
    except BaseException:
        made.abandon()
        raise
    made.start(info, callback)
    return made
