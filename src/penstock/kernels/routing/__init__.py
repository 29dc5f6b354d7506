"""Which subscriptions a subject reaches, in one account and across accounts."""
