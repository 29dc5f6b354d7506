"""Configuration of the server.

- `server_options` and `jetstream_options`, `tls_options`, `websocket_options`: frozen, validated options.
- `conf_parser`: the grammar of nats.conf. `directives`: converts its tree to options.
- `access_directives`, `import_export_directives`, `mapping_directives`, `operator_directives`,
  `remote_directives`, `tls_directives`, `websocket_directives`: single blocks, imported only when a
  configuration has them.
- `ignored_directives`: directives without effect in this server.
"""
