"""Configurations from what is comfortable to write: keywords, timedeltas, datetimes, plain texts for enums.

    make_config(StreamConfig, {"name": "ORDERS", "subjects": ["orders.>"], "max_age": timedelta(days=7)})

Durations without a unit are nanoseconds, as they are on the wire; a timedelta leaves no doubt.
"""

import difflib
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec

from penstock.errors import MisuseError
from penstock.protocol.api import ConsumerConfig, StreamConfig
from penstock.protocol.durations import format_time

Config = TypeVar("Config", StreamConfig, ConsumerConfig)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def make_config(kind: type[Config], settings: dict[str, Any], base: Config | None = None) -> Config:
    """A configuration of `base` (or the defaults) with `settings` over it.

    Raises MisuseError for a name that the configuration does not have, and for a value that can not be it.
    """
    for name in settings:
        if name not in kind.__struct_fields__:
            near = difflib.get_close_matches(name, kind.__struct_fields__, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise MisuseError(f"{kind.__name__} has no setting {name!r}{hint}")
    values = msgspec.to_builtins(base) if base is not None else {}
    for name, value in settings.items():
        values[name] = plain_value(value)
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise MisuseError(f"{kind.__name__}: {error}") from None


def plain_value(value: Any) -> Any:
    """What JSON holds for `value`: nanoseconds for a timedelta, RFC3339 for a datetime, dicts for structs."""
    if isinstance(value, timedelta):
        return value // _MICROSECOND * 1000
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise MisuseError(f"{value!r} has no time zone; use datetime.now(UTC) or the like")
        return format_time((value - _EPOCH) // _MICROSECOND * 1000)
    if isinstance(value, list | tuple):
        return [plain_value(one) for one in value]
    if isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    return value
