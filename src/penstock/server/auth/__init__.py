"""Who may connect: users, tokens, keys, certificates, operators and auth callout."""
