"""The speeds at which speech stays clear, and what is said of one beyond."""

from __future__ import annotations

SLOWEST, FASTEST = 0.5, 2.0


def hold_speed(wanted: float, *, fastest: float = FASTEST) -> tuple[float, tuple[str, ...]]:
    """`wanted`, the request's speed times the instruction's, within the limits; and a warning if it wasn't."""
    allowed = min(max(wanted, SLOWEST), fastest)
    if allowed == wanted:
        return allowed, ()
    return allowed, (f"Speed {wanted:.2f} was held to {allowed:.2f}, the most that stays clear.",)
