"""Why a connection was closed. The texts appear in logs, `connz` and disconnect events."""

from enum import StrEnum


class CloseReason(StrEnum):
    """The close reasons of the official server that this server uses."""

    CLIENT_CLOSED = "Client Closed"
    AUTHENTICATION_TIMEOUT = "Authentication Timeout"
    AUTHENTICATION_FAILURE = "Authentication Failure"
    AUTHENTICATION_EXPIRED = "Authentication Expired"
    PROXY_NOT_TRUSTED = "Proxy Not Trusted"
    PROXY_REQUIRED = "Proxy Required"
    REVOCATION = "Credentials Revoked"
    TLS_HANDSHAKE_FAILURE = "TLS Handshake Failure"
    SLOW_CONSUMER_PENDING = "Slow Consumer (Pending Bytes)"
    SLOW_CONSUMER_DEADLINE = "Slow Consumer (Write Deadline)"
    WRITE_ERROR = "Write Error"
    READ_ERROR = "Read Error"
    PARSE_ERROR = "Parse Error"
    STALE_CONNECTION = "Stale Connection"
    PROTOCOL_VIOLATION = "Protocol Violation"
    BAD_CLIENT_PROTOCOL = "Bad Client Protocol Version"
    MAX_CONNECTIONS = "Maximum Connections Exceeded"
    MAX_ACCOUNT_CONNECTIONS = "Maximum Account Connections Exceeded"
    MAX_PAYLOAD = "Maximum Message Payload Exceeded"
    MAX_CONTROL_LINE = "Maximum Control Line Exceeded"
    MAX_SUBSCRIPTIONS = "Maximum Subscriptions Exceeded"
    SERVER_SHUTDOWN = "Server Shutdown"
    NO_RESPONDERS_REQUIRES_HEADERS = "No Responders Requires Headers"
    KICKED = "Kicked"
    DUPLICATE_ROUTE = "Duplicate Route"
    ROUTE_REMOVED = "Route Removed"
    CLUSTER_NAME_CONFLICT = "Cluster Name Conflict"
    DUPLICATE_SERVER_NAME = "Duplicate Server Name"
    CLUSTER_NAMES_IDENTICAL = "Cluster Names Identical"
    DUPLICATE_LEAFNODE = "Duplicate Remote LeafNode Connection"
    MINIMUM_VERSION_REQUIRED = "Minimum Version Required"
    MISSING_ACCOUNT = "Missing Account"
    WRONG_PORT = "Incorrect Port"
    WRONG_GATEWAY = "Wrong Gateway"
    INTERNAL_ERROR = "Internal Error"  # not one of the official server

    @property
    def is_refused_login(self) -> bool:
        """Whether the login was refused, or the client's authorization ended."""
        return self in (
            CloseReason.AUTHENTICATION_FAILURE,
            CloseReason.PROXY_NOT_TRUSTED,
            CloseReason.PROXY_REQUIRED,
        )

    @property
    def is_failed_authentication(self) -> bool:
        """Whether the client could not log in, or lost what it logged in with."""
        return self.is_refused_login or self in (
            CloseReason.AUTHENTICATION_TIMEOUT,
            CloseReason.AUTHENTICATION_EXPIRED,
            CloseReason.REVOCATION,
            CloseReason.TLS_HANDSHAKE_FAILURE,
        )

    @property
    def is_slow_consumer(self) -> bool:
        return self in (CloseReason.SLOW_CONSUMER_PENDING, CloseReason.SLOW_CONSUMER_DEADLINE)
