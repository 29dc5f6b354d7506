"""What monitoring shows, one module a page, with the official server's field names.

A page is a function from the server and the page's options to plain data. Options come from a URL's query
(`from_query`) or from the JSON body of a system request (the structs' field names are that JSON's).

Pages run in the server's event loop, so that nothing changes under them, and must not hold it up: a page
over something that can be long (connections, subscriptions, streams) is a generator that yields after each
piece of work, and whoever runs it lets the loop do other work in between. So such a page is consistent
within a piece, not as a whole; what ends in between is shown as it was last.

Rejected: taking the whole page in one go. Ten thousand connections are 100 ms in which no message moves.
"""
