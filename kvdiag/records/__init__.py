"""The record contract: table schemas and missing values. Imports nothing else of kvdiag."""
