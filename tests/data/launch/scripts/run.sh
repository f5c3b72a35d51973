#!/bin/bash
# Don't stop on unset variables
set -e
export HF_HUB_OFFLINE=1
MODEL=/models/kimi
ulimit -l unlimited
exec /opt/vllm/bin/vllm serve "$MODEL" --port ${PORT:-8000} "$@"
