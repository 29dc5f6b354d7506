"""Walking the chain of one subject: how many messages it has from a sequence on. For kernels only."""
