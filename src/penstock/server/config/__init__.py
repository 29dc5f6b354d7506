"""nats.conf and options: parsing, directives, validation."""
