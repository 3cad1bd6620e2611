"""The least work for which several threads pay, and the boundaries of equal parts.

With less work, handing parts to threads costs more than it saves. The numbers were measured with OpenMP's
threads; `Team.grain` raises them for products and copies in threads that sleep.
"""

from __future__ import annotations

from xpgrad.engine.process.team import Team

TIME_LOOP = 1 << 14
"""Elements of a time loop with products, in all steps."""
COPY = 1 << 15
"""Elements of a copy or a sum in a program."""
ARRAY = 1 << 17
"""Elements of a loop over an array, or of a time loop without products."""
IMAGES = 1 << 18
"""Elements of the images for one thread that Python starts."""
OWN_IMAGES = 1 << 14
"""Elements of the images for one thread in a program."""
PRODUCT = 1 << 19
"""Multiply-adds of a matrix product."""
LANE = 1 << 21
"""Multiply-adds of the large works of a lane; see `programs.lanes`."""


def compiled_parts(elements: int, team: Team, least: int) -> int:
    """The number of parts of compiled work for which threads pay from `least` elements on.

    It is 1 for a team without addresses, whose threads Python must start.
    """
    # the number of elements, which may be a symbol, last: where nothing depends on it, it is no condition
    return threads if (threads := team.size()) > 1 and team.addresses is not None and elements >= least else 1


def product_threads(multiplications: int, threads: int, grain: int) -> int:
    """The number of threads for a product of `multiplications` multiply-adds."""
    return threads if threads > 1 and multiplications >= PRODUCT * grain else 1


def cuts(count: int, parts: int) -> list[int]:
    """The boundaries of equal parts of 0 .. count, including both ends."""
    return [count * part // parts for part in range(parts + 1)]
