#!/usr/bin/env bash
source /srv/env.sh
exec vllm serve /models/kimi \
    --port 8000 \
    --tensor-parallel-size 8   # all of them
