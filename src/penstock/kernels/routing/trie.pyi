"""The trie of wildcard filters; nothing of it is for Python."""
