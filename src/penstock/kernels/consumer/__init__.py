"""Delivery: ack states, the pump from a log to receivers, redelivery queues."""
