"""Configuration of the server.

- `server_options` and `jetstream_options`, `tls_options`, `web_options`, `websocket_options`: frozen,
  validated options.
- `option_checks`, `operator_checks`: validation.
- `conf_parser`: the grammar of nats.conf. `values`, `block_fields`: read single values and blocks.
- `directives`: converts the parser's tree to options.
- `access_directives`, `import_export_directives`, `mapping_directives`, `operator_directives`,
  `cluster_directives`, `proxy_directives`, `remote_directives`, `tls_directives`, `web_directives`,
  `websocket_directives`: single blocks, imported only when a configuration has them.
- `ignored_directives`: directives without effect in this server.

Nothing here imports other parts of the server, except for its version.
"""
