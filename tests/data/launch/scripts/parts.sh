#!/bin/bash
cd "${0%/*}"
exec vllm serve /models/kimi
