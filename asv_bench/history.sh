#!/usr/bin/env bash
# Measures one or two benchmarks of each family at commits of the history, with this checkout's definitions:
#     bash history.sh COMMIT ...
# Then "python track.py" draws the results in results/. A commit takes about a minute; the first builds an environment.
set -euo pipefail
cd "$(dirname "$0")"

asv=${ASV:-asv}
cases="'50x32x256x256', '(lstm|gru)', 'xpgrad-torch'"
cases+="|'50x32x64x64', 'lstm-peephole', 'xpgrad-torch'"
cases+="|'8x64x56, 64 of 3', 'xpgrad-torch'"
cases+="|'4M', 'gelu', 'xpgrad-torch'|'4096x1024', 'softmax', 'xpgrad-torch'"
suites="recurrent\.(Step|Lengths|Variants)\.time|recurrent\.(|Lengths|Variants)Ratio\.track"
suites+="|convolution\.Convolutions\.time|convolution\.ConvolutionRatio\.track"
suites+="|activations\.(Pointwise|Softmax)Backward\.time|activations\.(Softmax)?BackwardRatio\.track"

"$asv" machine --yes > /dev/null
for commit in "$@"; do
    "$asv" run --skip-existing --attribute rounds=1 --attribute warmup_time=0.1 \
        --bench "^($suites).*\(($cases)\)$" "$commit^!"
done
