"""Reward for vime: `--custom-rm-path retool_reward.hooks.vime.reward_func --reward-key score`.

With `--group-rm` it takes a group at once. For rewards that depend on the group add
`--custom-reward-post-process-path retool_reward.hooks.vime.post_process_rewards`.
"""

from ._slime_family import post_process_rewards, reward_func

__all__ = ["post_process_rewards", "reward_func"]
