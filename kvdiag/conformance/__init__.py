"""Proof that an adapter is what it says: the same checks for built-in and foreign methods."""
