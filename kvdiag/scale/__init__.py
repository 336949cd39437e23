"""Builds on many machines. The only place that knows Ray."""
