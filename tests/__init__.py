"""Tests mirror the package. A package itself: some libraries install one of this name too, and ours must win."""
