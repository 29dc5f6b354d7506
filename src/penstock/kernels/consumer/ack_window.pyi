"""The deliveries above an ack floor; nothing of it is for Python."""
