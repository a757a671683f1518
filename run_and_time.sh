#!/usr/bin/env bash
# One timed run (or --runs N) of a system: ./run_and_time.sh [systems/<name>.json] [--runs N] [--set key=value ...]
set -u
cd "$(dirname "$(readlink -f "$0")")" || exit 1
. ./setup_env.sh
use_python mlperf_logging ""
exec "$PYTHON" -m bert_mlperf launch "$@"
