#!/usr/bin/env bash
# Lint, types and all tests: ./run_tests.sh [pytest arguments]
set -u
cd "$(dirname "$(readlink -f "$0")")" || exit 1
. ./setup_env.sh
use_python "pytest, hypothesis, tensorflow, triton" "[test,tf,triton]"
"$PYTHON" -m ruff check . && "$PYTHON" -m ruff format --check . && "$PYTHON" -m mypy || exit 1
exec "$PYTHON" -m pytest "$@"
