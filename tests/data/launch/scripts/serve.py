#!/usr/bin/python3
import vllm
