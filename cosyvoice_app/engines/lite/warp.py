"""Dynamic time warping of two utterances of the same words, with slope limits and free pauses. NumPy only.

    local distances d [N, M] ──► the path of least cost from (0, 0) to (N - 1, M - 1)

Steps are Sakoe & Chiba's with slope limits 1/2 and 2 ("Dynamic programming algorithm optimization for spoken word
recognition", IEEE Trans. ASSP 26, 1978): neither side may run more than twice as fast as the other. Readers, however,
pause where they like; so, where told, one side may wait while the other passes a pause, at a fixed price a frame.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

# Steps into a cell (i, j), as the cell they come from: (di, dj).
_STEPS = ((1, 1), (1, 2), (2, 1), (0, 1), (1, 0))


@dataclass(frozen=True, slots=True)
class Pauses:
    """Where a side may wait. `row_waits` [N]: rows that may stay while columns marked `column_silent` [M] pass;
    `row_silent` [N]: rows that may pass while the column stays. `price` is per frame passed, in units of d.
    """

    row_waits: Bools
    row_silent: Bools
    column_silent: Bools
    price: float


def warp(d: Floats, pauses: Pauses) -> Ints | None:
    """Path cells [K, 2] from (0, 0) to the last cell of d [N, M], or None when the slope limits allow no path.

    Cells lie one after another on the path; a double step lists the cell in its middle too. All anti-diagonals are
    computed at once, so 640 x 640 takes a few hundredths of a second.
    """
    n, m = d.shape
    cost = np.full((n + m - 1, n), np.inf)
    back = np.zeros((n + m - 1, n), np.int8)
    slanted = _slanted(d)
    wait_column = _slanted(np.where(pauses.row_waits[:, None] & pauses.column_silent[None], pauses.price, np.inf))
    wait_row = _slanted(np.where(pauses.row_silent[:, None], pauses.price, np.inf) + np.zeros((1, m)))
    cost[0, 0] = 2.0 * d[0, 0]
    nowhere = np.full(n, np.inf)
    for k in range(1, n + m - 1):
        here, ways = slanted[k], np.full((5, n), np.inf)
        # Symmetric weights: a path's total weight is N + M whatever its course, so longer ways round gain nothing.
        ways[0, 1:] = (cost[k - 2] if k >= 2 else nowhere)[:-1] + 2.0 * here[1:]
        if k >= 3:
            ways[1, 1:] = cost[k - 3, :-1] + 2.0 * slanted[k - 1, 1:] + here[1:]
            ways[2, 2:] = cost[k - 3, :-2] + 2.0 * slanted[k - 1, 1:-1] + here[2:]
        ways[3] = cost[k - 1] + wait_column[k]
        ways[4, 1:] = cost[k - 1, :-1] + wait_row[k, 1:]
        best = ways.argmin(axis=0)
        back[k] = best
        cost[k] = ways[best, np.arange(n)]
    if not np.isfinite(cost[-1, -1]):
        return None
    return _trace(back, n, m)


def _slanted(d: Floats) -> Floats:
    """[N, M] -> [N + M - 1, N]: row k holds d[i, k - i] at i, infinity where that lies outside."""
    n, m = d.shape
    out = np.full((n + m - 1, n), np.inf)
    i = np.arange(n)[:, None]
    out[i + np.arange(m)[None], i] = d
    return out


def _trace(back: npt.NDArray[np.int8], n: int, m: int) -> Ints:
    i, j = n - 1, m - 1
    cells = [(i, j)]
    while (i, j) != (0, 0):
        di, dj = _STEPS[back[i + j, i]]
        if dj == 2:
            cells.append((i, j - 1))
        elif di == 2:
            cells.append((i - 1, j))
        i, j = i - di, j - dj
        cells.append((i, j))
    return np.array(cells[::-1], np.int64)
