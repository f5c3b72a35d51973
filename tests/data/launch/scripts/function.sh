#!/bin/bash
start() {
  vllm serve /models/kimi "$@"
}
cat <<END
vllm serve is what comes next
END
start
