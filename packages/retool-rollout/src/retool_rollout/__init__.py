"""Token-exact multi-turn tool rollouts."""
