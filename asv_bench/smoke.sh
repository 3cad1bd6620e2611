#!/usr/bin/env bash
# Runs every benchmark once, at a small shape; its exit status is 2 if one fails. Its times mean nothing.
set -euo pipefail
cd "$(dirname "$0")"

python=$(command -v python)
export XPGRAD_CACHE_DIR=${XPGRAD_CACHE_DIR:-$HOME/.cache/xpgrad}
# asv asks about an unknown machine and keeps the answer in the home folder, so it gets a temporary one
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
# one thread each, libraries loaded once, one round per ratio: enough to see whether it runs
export HOME=$home OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 XPGRAD_BENCH_SMOKE=1

"$python" -m asv machine --yes > /dev/null
"$python" -m asv run --environment "existing:$python" --launch-method forkserver \
    --quick --show-stderr --dry-run --bench "50x32x64x64|'1k', 'gelu'|'8x125'|'2x5x10'|depthwise 3|64 of 4"
