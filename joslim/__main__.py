"""`python -m joslim` is the same program as `joslim`."""

from joslim.cli import main

main()
