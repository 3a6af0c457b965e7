"""Run one untrusted Python program and say how it ended."""
