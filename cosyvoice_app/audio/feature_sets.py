"""Parameters of features by what is known of a clip: kind, language, dialect, sample rate, SNR. A table, and a reader
that refuses whatever in it could be misread.

    choice = built_in().choose("mfcc", 8000, snr_db=7.0)     # or load(Path("mine.toml")): one's own sets go first
    choice.name, choice.why, choice.evidence
    features = choice.extractor()(samples, lengths)
    normalise(features.values, features.lengths, choice.parameters.normalisation)

The most specific set that matches is taken. That is well defined since sets may lie within one another, but two that
cross are refused unless a third covers exactly what they share. What isn't known of a clip matches no condition on it.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cosyvoice_app.audio.config_checks import checked_setting
from cosyvoice_app.audio.feature_conditions import When, read_when
from cosyvoice_app.audio.feature_configs import FbankConfig, LogMelConfig, Mel24kConfig, MfccConfig, WhisperMelConfig
from cosyvoice_app.audio.features import KINDS, Extractor, Kind, extractor_for
from cosyvoice_app.audio.normalise import NORMS, NormConfig, norm_for
from cosyvoice_app.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_BYTES, MAX_SETS = 200_000, 200
_BUILT_IN = "feature_sets.toml"
_CONFIGS: Mapping[str, type] = {
    "mfcc": MfccConfig,
    "fbank": FbankConfig,
    "logmel": LogMelConfig,
    "whisper-mel": WhisperMelConfig,
    "mel24k": Mel24kConfig,
}
_OWN_RATE_HZ: Mapping[str, int] = {kind: extractor_for(kind).rate_hz for kind in ("whisper-mel", "mel24k")}
_TEXTS = ("name", "why", "evidence")
_KEYS = (*_TEXTS, "when", "normalisation", *KINDS)
_MAX_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Parameters:
    """`changes` are those from the kind's defaults: what `extractor_for(kind, rate_hz, **changes)` takes."""

    kind: Kind
    rate_hz: int
    changes: Mapping[str, Any]
    normalisation: NormConfig


@dataclass(frozen=True, slots=True)
class Choice:
    """`matched` says what of the clip the set was taken for, `source` whose set it is: "built-in" or a file's name."""

    name: str
    why: str
    evidence: str
    parameters: Parameters
    matched: str
    source: str

    def extractor(self) -> Extractor:
        return extractor_for(self.parameters.kind, self.parameters.rate_hz, **self.parameters.changes)

    def to_dict(self) -> dict[str, Any]:
        """For reports; JSON-ready."""
        norm = self.parameters.normalisation
        kind = next(kind for kind, config in NORMS.items() if type(norm) is config)
        return {
            "set": self.name,
            "source": self.source,
            "matched": self.matched,
            "why": self.why,
            "evidence": self.evidence,
            "changes": dict(self.parameters.changes),
            "normalisation": {"kind": kind, **asdict(norm)},
        }


@dataclass(frozen=True, slots=True)
class FeatureSet:
    """One row of a table; `normalisation` is what `norm_for` takes, since seconds become frames only with a rate."""

    name: str
    why: str
    evidence: str
    when: When
    normalisation: Mapping[str, Any]
    changes: Mapping[str, Mapping[str, Any]]
    line: int

    def __str__(self) -> str:
        return f'set "{self.name}" (line {self.line})'


@dataclass(frozen=True, slots=True)
class FeatureSets:
    """Checked tables, the first of which that has a match decides. Build with `built_in` or `load`."""

    tables: tuple[tuple[str, tuple[FeatureSet, ...]], ...] = field(repr=False)

    def choose(
        self,
        kind: Kind,
        rate_hz: int,
        *,
        at_hz: int | None = None,
        language: str | None = None,
        dialect: str | None = None,
        snr_db: float | None = None,
    ) -> Choice:
        """The parameters of features `kind` for a clip that came with `rate_hz`.

        `at_hz` is the rate that features are computed at, when that isn't the clip's or the kind's own. `language` may
        have a region ("zh-CN"), which is not looked at. None and an SNR of NaN mean that it isn't known. ConfigError
        when what the set asks for can't be had at that rate.
        """
        if kind not in KINDS:
            raise ConfigError(f"There is no kind of features {kind!r}; there are {', '.join(KINDS)}.", param="kind")
        language = language.lower().partition("-")[0] if language else None
        dialect = dialect.lower() if dialect else None
        snr_db = None if snr_db is None or math.isnan(snr_db) else snr_db
        for source, sets in self.tables:
            fitting = [one for one in sets if one.when.matches(kind, language, dialect, rate_hz, snr_db)]
            best = next((one for one in fitting if all(other.when.contains(one.when) for other in fitting)), None)
            if best is not None:
                changes = best.changes.get(kind, MappingProxyType({}))
                # A set without a condition on the rate was tried at the usual one only when it was read.
                try:
                    extractor = extractor_for(kind, at_hz or _OWN_RATE_HZ.get(kind, rate_hz), **changes)
                    norm = norm_for(**best.normalisation, shift_s=extractor.shift_samples / extractor.rate_hz)
                except ConfigError as error:
                    raise ConfigError(f"{source}: {best}: {error.message}", param="feature_sets") from error
                parameters = Parameters(kind, extractor.rate_hz, changes, norm)
                return Choice(best.name, best.why, best.evidence, parameters, str(best.when), source)
        raise ConfigError(f"No set of parameters matches {kind} at {rate_hz} Hz.", param="feature_sets")

    def over(self, others: FeatureSets) -> FeatureSets:
        return FeatureSets((*self.tables, *others.tables))


@lru_cache(maxsize=1)
def built_in() -> FeatureSets:
    text = resources.files("cosyvoice_app.audio").joinpath(_BUILT_IN).read_text(encoding="utf-8")
    return from_toml(text, "built-in")


def load(path: Path) -> FeatureSets:
    """The sets of a file, and the built-in ones where none of those matches. ConfigError lists what is wrong."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{path.name} is larger than {MAX_BYTES} bytes.", param="feature_sets")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The parameter sets {path.name} can't be read: {error}.", param="feature_sets") from error
    return from_toml(text, path.name).over(built_in())


def from_toml(text: str, name: str) -> FeatureSets:
    """Raises ConfigError that lists every wrong set by its name and line."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name} is not valid TOML: {error}.", param="feature_sets") from None
    wrong = [f'"{key}" means nothing here; a file holds [[set]] tables only' for key in document if key != "set"]
    rows = document.get("set", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows) or not rows:
        wrong.append("there is no [[set]] table")
        rows = []
    if len(rows) > MAX_SETS:
        wrong.append(f"there are {len(rows)} sets; at most {MAX_SETS} are allowed")
        rows = []
    # The reader of TOML keeps no line numbers; tables written inline in one array have none to find.
    lines = [number for number, line in enumerate(text.splitlines(), 1) if re.match(r"\s*\[\[\s*set\s*\]\]", line)]
    sets: list[FeatureSet] = []
    for i, row in enumerate(rows):
        line = lines[i] if len(lines) == len(rows) else 0
        try:
            sets.append(_read_set(row, line))
        except ConfigError as error:
            label = row.get("name") if isinstance(row.get("name"), str) else f"number {i + 1}"
            wrong.append(f'set "{label}" (line {line}): {error.message.rstrip(".")}')
    wrong += _clashes(sets)
    if wrong:
        more = f"; and {len(wrong) - _MAX_SHOWN} more" if len(wrong) > _MAX_SHOWN else ""
        raise ConfigError(f"{name}: {'; '.join(wrong[:_MAX_SHOWN])}{more}.", param="feature_sets")
    return FeatureSets(((name, tuple(sets)),))


def _read_set(row: dict[str, Any], line: int) -> FeatureSet:
    for key in row:
        if key not in _KEYS:
            raise ConfigError(f"{key!r} is unknown; a set has {', '.join(_KEYS)}")
    for key in _TEXTS:
        if not isinstance(row.get(key), str) or not row[key].strip():
            raise ConfigError(
                f"{key} must be there, as text" + (" (say so if there is none)" if key == "evidence" else "")
            )
    when = read_when(_table(row, "when"))
    changes: dict[str, Mapping[str, Any]] = {}
    for kind in KINDS:
        if kind not in row:
            continue
        if when.kind is not None and kind not in when.kind:
            raise ConfigError(f"it changes {kind}, which its own condition leaves out")
        given = _table(row, kind)
        changes[kind] = MappingProxyType({name: _value(kind, name, value) for name, value in given.items()})
        for rate_hz in [_OWN_RATE_HZ[kind]] if kind in _OWN_RATE_HZ else when.example_rates(16_000):
            extractor_for(kind, rate_hz, **changes[kind])
    return FeatureSet(row["name"].strip(), " ".join(row["why"].split()), " ".join(row["evidence"].split()), when,
                      _read_norm(_table(row, "normalisation")), MappingProxyType(changes), line)  # fmt: skip


def _table(row: dict[str, Any], key: str) -> dict[str, Any]:
    found = row.get(key, {})
    if not isinstance(found, dict):
        raise ConfigError(f"{key} is {found!r}; it must be a table, such as {{ ... }}")
    return found


def _read_norm(given: dict[str, Any]) -> Mapping[str, Any]:
    if not isinstance(given.get("kind", "none"), str):
        raise ConfigError(f"normalisation kind is {given['kind']!r}; it must be one of {', '.join(NORMS)}")
    if given and "kind" not in given:
        raise ConfigError('normalisation needs a kind, such as kind = "utterance"')
    if "shift_s" in given:
        raise ConfigError("normalisation has no 'shift_s': the features' own shift is taken")
    given = {"kind": "none", **given}
    norm_for(**given)
    return MappingProxyType(given)


def _value(kind: str, name: str, value: Any) -> Any:
    """A value of the type its config has; TOML's whole numbers serve as floats."""
    config = _CONFIGS[kind]
    names = [field.name for field in fields(config) if field.name != "rate_hz"]
    if name not in names:
        raise ConfigError(f"{kind} has no setting {name!r}; it has {', '.join(names)}")
    try:
        return checked_setting(config, name, value)
    except ConfigError as error:
        raise ConfigError(f"{kind} {error.message}", param=name) from None


def _clashes(sets: list[FeatureSet]) -> list[str]:
    """Pairs between which "the most specific" could not decide."""
    wrong = []
    for i, one in enumerate(sets):
        for other in sets[:i]:
            if one.name == other.name:
                wrong.append(f"{other} and {one} have one name")
            shared = one.when.shared_with(other.when)
            if shared is None:
                continue
            if one.when == other.when:
                wrong.append(f"{other} and {one} have the same condition ({one.when})")
            elif (
                not one.when.contains(other.when)
                and not other.when.contains(one.when)
                and all(third.when != shared for third in sets)
            ):
                wrong.append(
                    f"{other} and {one} both match at {shared}, and neither lies within the other; "
                    "narrow one, or add a set for just that"
                )
    return wrong
