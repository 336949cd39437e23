"""The data set folder: writing, resuming, manifest, reading."""
