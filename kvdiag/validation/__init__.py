"""Checks of ledgers, files and records against the contract.

All checks are vectorised: the JSON Schemas are turned into SQL predicates that DuckDB evaluates over whole files
(62,400 runs in seconds), instead of a validator called a row at a time. `tests/validation` holds both to the same
verdict on mutated rows.
"""
