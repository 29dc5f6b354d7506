"""The table of literal filters; nothing of it is for Python."""
