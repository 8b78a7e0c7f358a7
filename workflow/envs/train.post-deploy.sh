#!/usr/bin/env bash
# Runs once after the environment was made, in the folder of the workflow: puts the project itself into it.
set -euo pipefail
python -m pip install --no-deps --no-build-isolation --editable .
