"""The commands of the trainer, one module each."""
