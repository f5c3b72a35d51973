#!/bin/bash
if [ "$ROLE" = prefill ]; then
  exec vllm serve /models/kimi --port 8100
else
  exec vllm serve /models/kimi --port 8200
fi
