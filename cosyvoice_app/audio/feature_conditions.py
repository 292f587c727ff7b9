"""When a set of feature parameters applies: a box over kind, language, dialect, sample rate and SNR, and how two
boxes lie to one another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

from cosyvoice_app.audio.features import KINDS
from cosyvoice_app.errors import ConfigError

Names = frozenset[str]
Span = tuple[float, float]
_NAMES = ("kind", "language", "dialect")
_BOUNDS = ("rate_from_hz", "rate_to_hz", "snr_from_db", "snr_below_db")


@dataclass(frozen=True, slots=True)
class When:
    """None: anything, also what isn't known. `rate` includes both ends; `snr` includes its lower end only."""

    kind: Names | None = None
    language: Names | None = None
    dialect: Names | None = None
    rate: Span | None = None
    snr: Span | None = None

    def matches(self, kind: str, language: str | None, dialect: str | None, rate_hz: int, snr_db: float | None) -> bool:
        named = ((self.kind, kind), (self.language, language), (self.dialect, dialect))
        return (
            all(allowed is None or value in allowed for allowed, value in named)
            and (self.rate is None or self.rate[0] <= rate_hz <= self.rate[1])
            and (self.snr is None or (snr_db is not None and self.snr[0] <= snr_db < self.snr[1]))
        )

    def contains(self, other: When) -> bool:
        """Whether this matches whatever the other matches."""
        names = ((self.kind, other.kind), (self.language, other.language), (self.dialect, other.dialect))
        spans = ((self.rate, other.rate), (self.snr, other.snr))
        return all(mine is None or (its is not None and its <= mine) for mine, its in names) and all(
            mine is None or (its is not None and mine[0] <= its[0] and its[1] <= mine[1]) for mine, its in spans
        )

    def shared_with(self, other: When) -> When | None:
        """What both match, or None when nothing is."""
        names = [
            _both(mine, its)
            for mine, its in ((self.kind, other.kind), (self.language, other.language), (self.dialect, other.dialect))
        ]
        rate, snr = _overlap(self.rate, other.rate), _overlap(self.snr, other.snr)
        if any(found is not None and not found for found in names):
            return None
        if (rate is not None and rate[0] > rate[1]) or (snr is not None and snr[0] >= snr[1]):
            return None
        return When(names[0], names[1], names[2], rate, snr)

    def example_rates(self, usual_hz: int) -> tuple[int, ...]:
        """Rates at which its parameters must work: the ends that are named, and the usual one if it is inside."""
        if self.rate is None:
            return (usual_hz,)
        low, high = self.rate
        named = {int(end) for end in self.rate if 0 < end < math.inf}
        return tuple(sorted(named | ({usual_hz} if low <= usual_hz <= high else set())))

    def __str__(self) -> str:
        said = [
            f"{name} {' or '.join(sorted(allowed))}"
            for name, allowed in zip(_NAMES, (self.kind, self.language, self.dialect), strict=True)
            if allowed is not None
        ]
        if self.rate is not None:
            said.append(_span("rate", self.rate, "up to", "Hz"))
        if self.snr is not None:
            said.append(_span("SNR", self.snr, "below", "dB"))
        return ", ".join(said) or "any clip"


def _both(mine: Names | None, its: Names | None) -> Names | None:
    if mine is None or its is None:
        return its if mine is None else mine
    return mine & its


def _overlap(mine: Span | None, its: Span | None) -> Span | None:
    if mine is None or its is None:
        return its if mine is None else mine
    return max(mine[0], its[0]), min(mine[1], its[1])


def _span(what: str, span: Span, upper: str, unit: str) -> str:
    parts = [f"from {span[0]:g}"] if span[0] > -math.inf and (span[0] > 0 or unit == "dB") else []
    parts += [f"{upper} {span[1]:g}"] if span[1] < math.inf else []
    return f"{what} {' '.join(parts) or 'known'}{f' {unit}' if parts else ''}"


def read_when(given: dict[str, Any]) -> When:
    """From a TOML table. Raises ConfigError that says what is wrong with it."""
    for key in given:
        if key not in (*_NAMES, *_BOUNDS):
            raise ConfigError(f"when has no {key!r}; it has {', '.join((*_NAMES, *_BOUNDS))}")
    kind, language, dialect = (_names(given, key) for key in _NAMES)
    for known in sorted((kind or frozenset()) - set(KINDS)):
        raise ConfigError(f"kind {known!r} is unknown; there are {', '.join(KINDS)}")
    for code in sorted(language or ()):
        if not (code.isascii() and code.isalpha() and len(code) in (2, 3)):
            raise ConfigError(f"language {code!r} must be a code of two or three letters, such as zh; regions go "
                              "into dialect")  # fmt: skip
    rate = _span_of(given, "rate_from_hz", "rate_to_hz", 0.0)
    snr = _span_of(given, "snr_from_db", "snr_below_db", -math.inf)
    if rate is not None and (rate[0] > rate[1] or rate[0] < 0):
        raise ConfigError(f"no rate lies between {rate[0]:g} and {rate[1]:g} Hz")
    if snr is not None and snr[0] >= snr[1]:
        raise ConfigError(f"no SNR lies from {snr[0]:g} to below {snr[1]:g} dB")
    return When(kind, language, dialect, rate, snr)


def _names(given: dict[str, Any], key: str) -> Names | None:
    if key not in given:
        return None
    value = given[key]
    if not isinstance(value, list) or not value or not all(isinstance(name, str) and name.strip() for name in value):
        raise ConfigError(f'{key} is {value!r}; it must be a list of names, such as ["zh"]')
    return frozenset(name.strip().lower() for name in cast("list[str]", value))


def _span_of(given: dict[str, Any], low: str, high: str, lowest: float) -> Span | None:
    if low not in given and high not in given:
        return None
    for key in (low, high):
        value = given.get(key, 0)
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ConfigError(f"{key} is {value!r}; it must be a number")
    return float(given.get(low, lowest)), float(given.get(high, math.inf))
