#!/bin/bash
# In the shape of the field's launch scripts for SFT on 16 NPUs, with the recipe's values.
export ASCEND_RT_VISIBLE_DEVICES=0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
MODEL=models/Qwen3-4B-Instruct-2507
NUM_DEVICES=${NUM_DEVICES:-16}

MODEL_ARGS=(--swiglu --num-layers 36 --hidden-size 2560 --vocab-size 151936)

CKPT_ARGS=(
   --hf-checkpoint ${MODEL}
   --ref-load ${MODEL}_torch_dist
   --save runs/sft
   --save-interval 60
   --rotary-base 5000000
)

SFT_ARGS=(
   --rollout-function-path sft_rollout.generate_rollout
   --prompt-data data/ReTool-SFT/data/train-00000-of-00001.parquet
   --input-key messages
   --rollout-shuffle
   --num-epoch 3
   --rollout-batch-size 128
   --global-batch-size 128
   --loss-type sft_loss
   --calculate-per-token-loss
   --disable-compute-advantages-and-returns
   --debug-train-only
)

PERF_ARGS=(
   --tensor-model-parallel-size 4
   --sequence-parallel
   --pipeline-model-parallel-size 1
   --recompute-granularity full
   --recompute-method uniform
   --recompute-num-layers 1
   --use-dynamic-batch-size
   --max-tokens-per-gpu 9216
   --use-distributed-optimizer
)

OPTIMIZER_ARGS=(
   --optimizer adam
   --lr 1e-5
   --lr-decay-style cosine
   --min-lr 1e-6
   --lr-warmup-fraction 0.1
   --weight-decay 0.1
   --adam-beta1 0.9
   --adam-beta2 0.95
   --optimizer-cpu-offload
   --overlap-cpu-optimizer-d2h-h2d
   --use-precision-aware-optimizer
)

MISC_ARGS=(
   --attention-dropout 0.0
   --hidden-dropout 0.0
   # --not-this-one 5
   --use-flash-attn
)

ray start --head --num-gpus 0 --resources '{"NPU": 16}'
ray job submit --address="http://127.0.0.1:8265" \
   -- python3 train_async.py \
   --actor-num-nodes 1 \
   --actor-num-gpus-per-node 16 \
   "${MODEL_ARGS[@]}" ${CKPT_ARGS[@]} ${SFT_ARGS[@]} ${PERF_ARGS[@]} ${OPTIMIZER_ARGS[@]} ${MISC_ARGS[@]}
