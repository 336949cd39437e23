"""Pure functions: arrays in, metrics out."""
