"""Who gets a message: accounts, each with its own index of subscriptions."""
