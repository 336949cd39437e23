"""The query-visibility audit: how much of a method's score survives when the question comes after compression."""
