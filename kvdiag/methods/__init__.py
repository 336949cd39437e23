"""Compression methods: the catalogue, and adapters that observe kvpress' presses."""
