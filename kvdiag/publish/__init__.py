"""Ledgers as data sets on the Hugging Face Hub: one commit and one tag a release."""
