"""The parts of the web page. A view is a coroutine function from a visitor and a query to one slice of JSON.

- `view_table`: all views and actions by name.
- `server_views`: overview, accounts, connections, cluster: from the monitoring pages.
- `stream_views`: streams and their consumers. `message_views`, `message_reading`: stored messages, filtered.
- `publish_actions`, `dead_letter_views`, `schedule_views`: what the page may also write.
- `spark_views`: progress of Spark queries.

Streams, messages and publishes go through the visitor's own connection; the server-wide views show what the
monitoring port shows to anyone.
"""
