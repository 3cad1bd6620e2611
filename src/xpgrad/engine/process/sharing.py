"""From how much work on several threads pay, and where equal parts of it end.

Below these numbers handing work to a thread costs more than it saves. They were measured with OpenMP's
threads; `Team.grain` raises them for products and copies in threads that sleep.
"""

from __future__ import annotations

from xpgrad.engine.process.team import Team

TIME_LOOP = 1 << 14
"""Elements of a time loop with products, all of its steps together."""
COPY = 1 << 15
"""Elements of a copy or a sum in a program."""
ARRAY = 1 << 17
"""Elements of a loop over an array, or of a time loop without products."""
IMAGES = 1 << 18
"""Elements of the images of a thread."""
PRODUCT = 1 << 19
"""Multiply-adds of a matrix product."""
LANE = 1 << 21
"""Multiply-adds of the large works of a lane, which has a thread of its own; see `programs.lanes`."""


def compiled_parts(elements: int, team: Team, least: int) -> int:
    """Into how many parts compiled code cuts work that pays from `least` elements on.

    A team without addresses needs Python to start its threads: it gets one part.
    """
    return team.size() if elements >= least and team.addresses is not None else 1


def product_threads(multiplications: int, threads: int, grain: int) -> int:
    """How many of the threads of a team with this `grain` so many multiplications are worth."""
    return threads if multiplications >= PRODUCT * grain else 1


def cuts(count: int, parts: int) -> list[int]:
    """The boundaries of equal parts of 0 .. count, including both ends."""
    return [count * part // parts for part in range(parts + 1)]
