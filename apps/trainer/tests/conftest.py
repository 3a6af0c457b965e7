"""Ray reads its variables when it is imported, so they are set before any test is."""

import os

# Started through `uv run`, Ray would make each worker an environment of its own.
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
