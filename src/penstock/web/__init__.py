"""The web page of a server: streams, messages, connections and the cluster in a browser.

The monitoring port serves it under `/ui/`, in the monitor's thread. A user logs in with the credentials of a
client; his session owns a client connection inside the process, so that the server's own checks decide what
he sees of his account and what he may write.

- `web_app`: routes, requests and answers. `static_files`: the page's own files.
- `session_table`: sessions by cookie. `session_expiry`: the timer that ends them.
- `request_checks`: origin, host and CSRF token of a request.
- `visitor`: the login and the connection of a user. `event_streams`: live views by server-sent events.
- `web_ports`: what the page uses of the server.
- `views`: one module for each part of the page. Each view is a function from a query to a JSON value.

Invariant: no view builds more than one slice (a page of a list), and no request leaves this server.

Rejected: a proxy to the JetStream API with the server's own rights, and permissions checked beside it (two
implementations of one policy differ sooner or later). A JavaScript framework (a build step, and code of
others in every release).
"""
