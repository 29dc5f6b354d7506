"""The client's source of unique identifiers: for inboxes, and for consumers that nobody named."""

import secrets

from penstock.protocol.ids import NuidGenerator

new_nuid = NuidGenerator(secrets.randbelow)
