#!/bin/bash
# In the shape of the field's launch scripts for RL on 16 NPUs, with the recipe's values.
export HCCL_HOST_SOCKET_PORT_RANGE=60000-60050

CKPT_ARGS=(
   --hf-checkpoint runs/sft/hf
   --save runs/rl
   --save-interval 20
   --rotary-base 5000000
)

ROLLOUT_ARGS=(
   --prompt-data data/dapo-math-17k/dapo-math-17k.jsonl
   --input-key prompt
   --label-key label
   --apply-chat-template
   --rollout-shuffle
   --reward-key score
   --num-rollout 400
   --rollout-batch-size 32
   --n-samples-per-prompt 8
   --rollout-max-response-len 8192
   --rollout-temperature 1
   --global-batch-size 256
   --balance-data
   --calculate-per-token-loss
)

EVAL_ARGS=(
   --eval-interval 20
   --eval-prompt-data aime-2024 data/aime-2024/aime-2024.jsonl
   --n-samples-per-eval-prompt 16
   --eval-max-response-len 16384
   --eval-top-p 1
)

PERF_ARGS=(
   --tensor-model-parallel-size 4
   --pipeline-model-parallel-size 1
   --recompute-granularity full
   --use-dynamic-batch-size
   --max-tokens-per-gpu 9216
   --use-distributed-optimizer
)

GRPO_ARGS=(
   --advantage-estimator grpo
   --use-kl-loss
   --kl-loss-coef 0.00
   --kl-loss-type low_var_kl
   --entropy-coef 0.00
   --eps-clip 0.2
   --eps-clip-high 0.28
)

OPTIMIZER_ARGS=(
   --optimizer adam
   --lr 1e-6
   --lr-decay-style constant
   --weight-decay 0.1
   --adam-beta1 0.9
   --adam-beta2 0.98
   --optimizer-cpu-offload
)

ENGINE_ARGS=(
   --rollout-num-gpus-per-engine 4
   --vllm-gpu-memory-utilization 0.85
)

CUSTOM_ARGS=(
   --custom-generate-function-path generate_with_retool.generate
   --custom-rm-path generate_with_retool.reward_func
)

ray job submit -- python3 train.py \
   --actor-num-nodes 1 --actor-num-gpus-per-node 8 --rollout-num-gpus 8 \
   ${CKPT_ARGS[@]} ${ROLLOUT_ARGS[@]} ${EVAL_ARGS[@]} ${PERF_ARGS[@]} ${GRPO_ARGS[@]} \
   ${OPTIMIZER_ARGS[@]} ${ENGINE_ARGS[@]} ${CUSTOM_ARGS[@]}
