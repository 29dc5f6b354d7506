"""Messages as Arrow columns, and rows as frames."""
