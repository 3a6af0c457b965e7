"""Adapters for training frameworks; each module names the arguments that point a run at it."""
