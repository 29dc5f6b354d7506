"""The redelivery queue of a consumer; nothing of it is for Python."""
