"""Accounts, subject mappings, permissions, imports and exports: everything that decides who gets a message.

The package does no IO and reads no clock or random source; both come in as callables.

- `account`: an account and its subscription index.
- `mapping`: subject mappings with weighted destinations, applied to client publishes before routing.
- `permissions`: what a user may publish, subscribe to, receive and reply to.
- `imports_exports`: the configuration of imports and exports, and its validation.
- `import_router`: imports as sinks in the accounts' indexes.

One message is routed by compiled code (`kernels.wire.dispatch`, `kernels.routing`). These modules build
what that code reads, and answer what it has not cached.
"""
