"""Adapters: what a method does to a layer, told without pruning anything.

kvpress' presses are observed, never re-implemented; own code stands here only for what kvpress lacks.
"""
