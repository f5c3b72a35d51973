#!/bin/bash
cd "$(dirname "$0")"
awk '{print $0}' notes
exec ./venv/bin/vllm serve /models/kimi
