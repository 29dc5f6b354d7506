"""The journal of an ack state; nothing of it is for Python."""
