"""What an engine's processes import: this folder is put on their PYTHONPATH, alone.

An engine may run in an environment that has vLLM and nothing of ours, so the modules here import
only torch and vLLM, and each other by their bare names.
"""
