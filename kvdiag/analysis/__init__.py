"""Statistics over a ledger."""
