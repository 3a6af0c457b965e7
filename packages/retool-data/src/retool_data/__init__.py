"""From raw tool-use files to token-exact training data."""
