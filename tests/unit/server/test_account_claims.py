"""Claims of accounts and users as the options of nats.conf."""

from __future__ import annotations

import msgspec
import pytest

from penstock.errors import ConfigError
from penstock.protocol import claims
from penstock.protocol.claims import AccountClaims, AccountFields, JetStreamLimits, OperatorLimits
from penstock.routing.imports_exports import (
    Latency,
    ResponseType,
    ServiceExport,
    ServiceImport,
    StreamExport,
    StreamImport,
)
from penstock.routing.mapping import SubjectMapping
from penstock.routing.permissions import PermissionEntry
from penstock.server.accounts.reservations import excess, growth
from penstock.server.auth.account_claims import (
    account_options,
    connection_types_of,
    jetstream_of,
    permissions_of,
)
from penstock.server.config.server_options import AccountJetStream, AccountOptions

pytestmark = pytest.mark.feature("security.operators")

NAME = "ACCOUNT"


def options(**fields: object) -> AccountOptions:
    account = AccountFields(**fields)  # type: ignore[arg-type]
    return account_options(AccountClaims(subject=NAME, nats=account), lambda one: bool(one.token))


def test_limits_have_their_places() -> None:
    found = options(limits=OperatorLimits(conn=1, subs=2, payload=3, leaf=4))
    assert (found.max_connections, found.max_subscriptions, found.max_payload, found.max_leafnodes) == (
        1,
        2,
        3,
        4,
    )
    assert (found.name, found.jetstream) == (NAME, None)


def test_jetstream_without_storage_is_none() -> None:
    assert jetstream_of(OperatorLimits(streams=5)) is None
    found = jetstream_of(OperatorLimits(mem_storage=-1, streams=5, max_bytes_required=True))
    assert found == AccountJetStream(
        max_memory_bytes=-1, max_file_bytes=0, max_streams=5, max_bytes_required=True
    )


def test_tiers_come_over() -> None:
    tiers = {"R3": JetStreamLimits(disk_storage=3), "R1": JetStreamLimits(disk_storage=1, consumer=7)}
    found = jetstream_of(OperatorLimits(tiered_limits=tiers))
    assert found is not None
    assert [(name, tier.max_file_bytes, tier.max_consumers) for name, tier in found.tiers] == [
        ("R1", 1, 7),
        ("R3", 3, -1),
    ]
    assert excess([found], 0, 4) == ""
    assert excess([found, found], 0, 4).startswith("insufficient storage")
    assert growth(None, found) == 4


def test_mappings_come_over() -> None:
    found = options(mappings={"a": (claims.WeightedMapping(subject="b"),)})
    assert found.mappings == (SubjectMapping.to("a", "b"),)
    with pytest.raises(ConfigError):
        options(mappings={"a.*": (claims.WeightedMapping(subject="b.$2"),)})


def test_exports_come_over() -> None:
    latency = claims.ServiceLatency(sampling="headers", results="lat")
    found = options(
        exports=(
            claims.ExportClaim(subject="s.*", type="stream", token_req=True, account_token_position=2),
            claims.ExportClaim(subject="q", type="service", response_type="Chunked", response_threshold=5,
                          service_latency=latency),
            claims.ExportClaim(subject="r", type="service"),
        )
    )  # fmt: skip
    assert found.exports == (
        StreamExport(subject="s.*", token_required=True, account_token_position=2),
        ServiceExport(
            subject="q",
            response=ResponseType.CHUNKED,
            response_threshold_ns=5,
            latency=Latency(subject="lat", sampling=0),
        ),
        ServiceExport(subject="r"),
    )


def test_imports_come_over_in_their_old_and_new_forms() -> None:
    base = claims.ImportClaim(account="B", type="stream", subject="s.*")
    service = msgspec.structs.replace(base, type="service", subject="q")
    found = options(
        imports=(
            base,
            msgspec.structs.replace(base, to="prefix", token="t"),
            msgspec.structs.replace(base, local_subject="mine.$1"),
            service,
            msgspec.structs.replace(service, local_subject="mine", share=True),
            msgspec.structs.replace(service, subject="mine", to="q"),
        )
    )
    assert found.imports == (
        StreamImport(account="B", subject="s.*"),
        StreamImport(account="B", subject="s.*", to="prefix.s.*", activated=True),
        StreamImport(account="B", subject="s.*", to="mine.$1"),
        ServiceImport(account="B", subject="q", to="q"),
        ServiceImport(account="B", subject="q", to="mine", share=True),
        ServiceImport(account="B", subject="q", to="mine"),
    )


def test_permissions_come_over_with_defaults_for_responses() -> None:
    assert permissions_of(claims.PermissionsClaim()) is None
    found = permissions_of(
        claims.PermissionsClaim(
            sub=claims.PermissionClaim(allow=("a q",)), resp=claims.ResponsePermissionClaim()
        )
    )
    assert found is not None
    assert found.subscribe.allow == (PermissionEntry("a", "q"),)
    assert found.publish.allow is None
    assert found.responses is not None
    assert (found.responses.max_msgs, found.responses.expires_ns) == (1, 120 * 10**9)
    with pytest.raises(ConfigError):
        permissions_of(claims.PermissionsClaim(pub=claims.PermissionClaim(allow=("a q",))))


def test_unknown_connection_types_let_no_client_in() -> None:
    assert connection_types_of(claims.UserLimits()) == frozenset()
    assert connection_types_of(claims.UserLimits(allowed_connection_types=("mqtt", "X"))) == {"MQTT"}
    assert connection_types_of(claims.UserLimits(allowed_connection_types=("X",))) is None
