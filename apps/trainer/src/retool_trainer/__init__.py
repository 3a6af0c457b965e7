"""SFT and RL with a Python tool on Ray, Megatron-core and vLLM."""
