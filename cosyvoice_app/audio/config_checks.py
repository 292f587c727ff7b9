"""One check for every setting of the features: its type, its choices and its bounds are read off its annotation.

    Share = Annotated[float, Within(0.0, 1.0)]
    checked("share", Share, 2)      ConfigError: share is 2; it must be a number at least 0 and at most 1.

A frozen config calls `check_settings(self)` when it is made, so nothing that computes has to ask again, and a reader of
files calls `checked_setting` to name its own place in the error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from numbers import Integral, Real
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from cosyvoice_app.errors import ConfigError

_NAMES: Mapping[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


@dataclass(frozen=True, slots=True)
class Within:
    """Bounds of a number. `above`: the lower one is not included. NaN lies within no bounds, infinity only where `high`
    is infinity.
    """

    low: float
    high: float
    above: bool = False

    def holds(self, value: float) -> bool:
        return (self.low < value if self.above else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        least = f"greater than {self.low:.12g}" if self.above else f"at least {self.low:.12g}"
        return least if math.isinf(self.high) else f"{least} and at most {self.high:.12g}"


RateHz = Annotated[int, Within(0, 1_000_000, above=True)]
Hz = Annotated[float, Within(0.0, 500_000.0)]
Milliseconds = Annotated[float, Within(0.0, 60_000.0, above=True)]
Bins = Annotated[int, Within(0, 1024, above=True)]
MAX_POINTS = 65_536
"""Of a Fourier transform; with as many as 1024 filters its filterbank takes 128 MB."""
Points = Annotated[int, Within(0, MAX_POINTS, above=True)]


def checked(name: str, hint: Any, value: Any) -> Any:
    """`value` as `hint` wants it: a float where it wants one and a whole number was given. ConfigError says what is
    allowed. `hint` is int, float, bool, str, a Literal, any of these Annotated with `Within`, or a union of them.
    """
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    for option in options:
        plain, bounds = _parts(option)
        fitting = _fitting(plain, value)
        if fitting is not None and (bounds is None or bounds.holds(fitting)):
            return fitting
        if option is type(None) and value is None:
            return None
    wanted = " or ".join("none" if option is type(None) else _wanted(option) for option in options)
    raise ConfigError(f"{name} is {value!r}; it must be {wanted}.", param=name)


def checked_setting(config: type, name: str, value: Any) -> Any:
    """`value` as the field `name` of the dataclass `config` wants it."""
    return checked(name, _hints(config)[name], value)


def check_settings(config: Any) -> None:
    """Check every field of a frozen dataclass from its `__post_init__`, and leave each as its annotation wants it."""
    for field in fields(config):
        value = getattr(config, field.name)
        wanted = checked_setting(type(config), field.name, value)
        if wanted is not value:
            object.__setattr__(config, field.name, wanted)


@lru_cache(maxsize=32)
def _hints(config: type) -> dict[str, Any]:
    return get_type_hints(config, include_extras=True)


def _parts(hint: Any) -> tuple[Any, Within | None]:
    if get_origin(hint) is not Annotated:
        return hint, None
    plain, *extras = get_args(hint)
    return plain, next((extra for extra in extras if isinstance(extra, Within)), None)


def _fitting(plain: Any, value: Any) -> Any:
    """None when it doesn't fit. True and False are no numbers here; NumPy's numbers are."""
    if get_origin(plain) is Literal:
        return next((one for one in get_args(plain) if type(one) is type(value) and one == value), None)
    if plain is bool or plain is str:
        return value if type(value) is plain else None
    if isinstance(value, bool):
        return None
    if plain is int and isinstance(value, Integral):
        return int(value)
    if plain is float and isinstance(value, Real):
        try:
            return float(value)
        except OverflowError:
            return None
    return None


def _wanted(option: Any) -> str:
    plain, bounds = _parts(option)
    if get_origin(plain) is Literal:
        return f"one of {', '.join(map(repr, get_args(plain)))}"
    return f"{_NAMES[plain]} {bounds}" if bounds is not None else _NAMES[plain]
