"""`python -m kvdiag` is the same as `kvdiag`."""

from kvdiag.cli import main

main()
