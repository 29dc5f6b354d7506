"""Why a connection was closed: the texts that logs, `connz` and disconnect events show."""

from enum import StrEnum


class CloseReason(StrEnum):
    """The official server's close reasons that can come up here."""

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
    INTERNAL_ERROR = "Internal Error"  # of this server

    @property
    def is_refused_login(self) -> bool:
        """Was the client not let in, or not any more, as who it says it is?"""
        return self in (
            CloseReason.AUTHENTICATION_FAILURE,
            CloseReason.PROXY_NOT_TRUSTED,
            CloseReason.PROXY_REQUIRED,
        )

    @property
    def is_slow_consumer(self) -> bool:
        return self in (CloseReason.SLOW_CONSUMER_PENDING, CloseReason.SLOW_CONSUMER_DEADLINE)
