"""A Protobuf schema that has every kind of field, as a descriptor set, and classes of its messages.

It is the descriptor of this file, made by descriptor messages instead of by protoc:

    syntax = "proto3";
    package shop;
    message Order {
      enum State { NEW = 0; PAID = 1; }
      message Line { string sku = 1; int32 count = 2; }
      int64 id = 1;  string name = 2;  double price = 3;  State state = 4;  optional int32 rank = 5;
      bytes raw = 6;  uint64 big = 7;  bool ok = 8;  Line first = 9;  repeated Line lines = 10;
      repeated int32 numbers = 11;  map<string, Line> by_sku = 12;  google.protobuf.Timestamp at = 13;
      google.protobuf.Duration took = 14;  google.protobuf.StringValue note = 15;  Order parent = 16;
      google.protobuf.Struct more = 17;  oneof how { string card = 18; int32 cash = 19; }
    }
    message Refund { int64 id = 1; }
"""

from __future__ import annotations

from typing import Any

FILE = "shop.proto"
_SCALARS = {"double": 1, "int64": 3, "uint64": 4, "int32": 5, "bool": 8, "string": 9, "bytes": 12}
_ORDER = (
    ("id", "int64"),
    ("name", "string"),
    ("price", "double"),
    ("state", ".shop.Order.State"),
    ("rank", "int32"),
    ("raw", "bytes"),
    ("big", "uint64"),
    ("ok", "bool"),
    ("first", ".shop.Order.Line"),
    ("lines", ".shop.Order.Line"),
    ("numbers", "int32"),
    ("by_sku", ".shop.Order.BySkuEntry"),
    ("at", ".google.protobuf.Timestamp"),
    ("took", ".google.protobuf.Duration"),
    ("note", ".google.protobuf.StringValue"),
    ("parent", ".shop.Order"),
    ("more", ".google.protobuf.Struct"),
    ("card", "string"),
    ("cash", "int32"),
)
_REPEATED = ("lines", "numbers", "by_sku")


def _field(message: Any, name: str, number: int, kind: str) -> Any:
    field = message.field.add(name=name, number=number, label=3 if name in _REPEATED else 1)
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type = 14 if kind.endswith("State") else 11
        field.type_name = kind
    return field


def shop_file(*, added: tuple[tuple[str, str], ...] = (), removed: tuple[str, ...] = ()) -> Any:
    """The FileDescriptorProto. added: fields of Order, from number 30 on. removed: those that it lacks."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    file = FileDescriptorProto(name=FILE, package="shop", syntax="proto3")
    for name in ("timestamp", "duration", "wrappers", "struct"):
        file.dependency.append(f"google/protobuf/{name}.proto")
    order = file.message_type.add(name="Order")
    state = order.enum_type.add(name="State")
    state.value.add(name="NEW", number=0)
    state.value.add(name="PAID", number=1)
    line = order.nested_type.add(name="Line")
    _field(line, "sku", 1, "string")
    _field(line, "count", 2, "int32")
    entry = order.nested_type.add(name="BySkuEntry")
    entry.options.map_entry = True
    _field(entry, "key", 1, "string")
    _field(entry, "value", 2, ".shop.Order.Line")
    order.oneof_decl.add(name="how")
    order.oneof_decl.add(name="_rank")
    for number, (name, kind) in enumerate(_ORDER, 1):
        if name in removed:
            continue
        field = _field(order, name, number, kind)
        if name in ("card", "cash"):
            field.oneof_index = 0
        if name == "rank":
            field.oneof_index, field.proto3_optional = 1, True
    for number, (name, kind) in enumerate(added, 30):
        _field(order, name, number, kind)
    _field(file.message_type.add(name="Refund"), "id", 1, "int64")
    return file


def shop_descriptor(**changes: Any) -> bytes:
    """A FileDescriptorSet without the files of Protobuf itself, as protoc makes it by default."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    return bytes(FileDescriptorSet(file=[shop_file(**changes)]).SerializeToString())


def shop_class(name: str = "shop.Order", **changes: Any) -> Any:
    """The class of a message, to make payloads with."""
    from google.protobuf import duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    pool = DescriptorPool()
    for module in (timestamp_pb2, duration_pb2, wrappers_pb2, struct_pb2):
        pool.Add(FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb))
    pool.Add(shop_file(**changes))
    return GetMessageClass(pool.FindMessageTypeByName(name))
