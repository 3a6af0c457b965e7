"""Grade a math answer and shape the reward."""
