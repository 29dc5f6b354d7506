"""From publishes to records: checks, batches, pub acks, copies from other streams."""
