#!/bin/sh
exec vllm serve "$1" --port "$2"
