"""Commands about messages: `penstock pub|sub|req|reply|rtt`.

pub.py, subscribing.py, requesting.py, replying.py, rtt.py   one command each
message_texts.py   how messages are printed; bodies.py  where bodies come from; templates.py
templates in them
merging.py   messages of several subscriptions
"""
