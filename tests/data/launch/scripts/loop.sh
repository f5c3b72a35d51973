#!/bin/bash
until vllm serve /models/kimi; do
  sleep 5
done
