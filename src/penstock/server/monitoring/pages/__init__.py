"""Monitoring pages, one module per page, with the official server's field names.

A page is a function from the server and the page's options to plain data. Options come from a URL query
(`from_query`) or from the JSON body of a system request, with the same field names.

Pages run in the server's event loop, so that nothing changes concurrently, and must not block it. A page over
long lists (connections, subscriptions, streams) is a generator that yields after each piece of work; its
caller lets the loop run in between. Such a page is consistent within a piece only; an object that ends in
between appears in its last state.

Rejected: building the page at once. Ten thousand connections take 100 ms, in which no message is routed.
"""
