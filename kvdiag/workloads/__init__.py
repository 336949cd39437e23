"""Workloads: sources with character-level evidence spans, and their scores."""
