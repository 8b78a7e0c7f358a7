"""Packing the workflow on a machine with network and running it on one without.

`bundle.pack` runs where the workflow is installed. `bundle.runner` and all that it imports travel inside the bundle and
need nothing but Python's standard library.
"""
