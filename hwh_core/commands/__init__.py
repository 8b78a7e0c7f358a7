"""Subcommands of the ``hwh`` program, one module each."""
