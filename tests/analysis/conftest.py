"""Ledgers that tests of statistics share."""

from tests.validation.conftest import built_ledger

__all__ = ["built_ledger"]
