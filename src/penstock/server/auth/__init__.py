"""Authentication and authorization of clients.

- `logins`: authenticators and auth callout for the options in effect. `client_login`: the login of one
  client.
- `authenticator`, `passwords`: users of the options. `certificate_users`: users by client
  certificate.
- `operators`, `account_claims`, `activations`, `resolver`, `claims_service`: operator mode, with JWTs.
- `auth_callout`, `callout_policies`: authentication by a service among the clients.
- `session_permissions`: enforces permissions on a connection. `trusted_proxies`: proxies that sign the nonce.
- `client_identity`: credentials and log name of a session.
"""
