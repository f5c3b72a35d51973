#!/bin/bash
ARGS=(
  /models/kimi
  --port 8000  # behind the router
)
ARGS+=(--max-num-seqs 64)
FLAGS="--enable-prefix-caching --seed 3"
exec vllm serve "${ARGS[@]}" $FLAGS
