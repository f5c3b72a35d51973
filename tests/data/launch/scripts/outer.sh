#!/bin/bash
exec /srv/run.sh --max-num-seqs 64
