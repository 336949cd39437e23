"""SQL over a ledger: a DuckDB connection, views and macros, output formats. Never imports torch."""
