"""Compares a commit with its base on this machine; the exit status is 1 if it is slower by a factor.

    python compare.py main                  # HEAD with main
    python compare.py HEAD~3 HEAD --bench 'recurrent.Step.*lstm'

asv installs and measures both. A benchmark counts as worse if it is worse by the factor, and by more than the
spread of its samples. Times, memory and ratios are compared.
"""

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
FACTOR = 1.3
# a shape of each family
BENCHES = (
    "(Step|Lengths|Double)\\.(time|peakmem).*50x32x64x64.*xpgrad",
    "Convolutions\\.time.*8x64x56, 64 of 3.*xpgrad",
    "Backward\\.time.*('4M', '(gelu|tanh)'|4096x1024).*xpgrad",
)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("head", nargs="?", default="HEAD", help="the commit to judge (default: HEAD)")
    parser.add_argument(
        "--bench", nargs="+", default=BENCHES, help="regular expressions (default: a shape of each family)"
    )
    parser.add_argument("--factor", type=float, default=FACTOR, help=f"slower by this (default: {FACTOR})")
    parser.add_argument("--config", type=Path, default=HERE / "asv.conf.json", help="asv's (default: this)")
    args = parser.parse_args(argv)
    config = args.config.resolve()
    asv = [sys.executable, "-m", "asv", "--config", str(config)]
    # asv asks questions about an unknown machine
    subprocess.run([*asv, "machine", "--yes"], check=True, cwd=config.parent, stdout=subprocess.DEVNULL)
    words = [word for bench in args.bench for word in ("--bench", bench)]
    judged = [*asv, "continuous", args.base, args.head, "--factor", str(args.factor), *words]
    return subprocess.run(judged, cwd=config.parent).returncode


if __name__ == "__main__":
    sys.exit(main())
