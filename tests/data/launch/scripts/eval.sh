#!/bin/bash
CMD="vllm serve /models/kimi"
eval "$CMD"
