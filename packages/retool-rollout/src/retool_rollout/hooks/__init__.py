"""Adapters for trainers: `--custom-generate-function-path retool_rollout.hooks.vime.generate`."""
