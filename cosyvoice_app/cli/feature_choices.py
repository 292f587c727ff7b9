"""Which settings and normalisation a clip's features get: those asked for, or a set chosen by what the clip is."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cosyvoice_app import __version__
from cosyvoice_app.errors import ConfigError

if TYPE_CHECKING:
    from cosyvoice_app.audio.clip_features import BatchExtractor
    from cosyvoice_app.audio.feature_sets import FeatureSets
    from cosyvoice_app.audio.features import Extractor
    from cosyvoice_app.audio.normalise import NormConfig

NORMALISATIONS = ("none", "utterance", "exponential", "window")
"""Those of audio.normalise, written out because that imports torch, which `--help` shouldn't wait for."""
BUILT_IN = "auto"


@dataclass(frozen=True, slots=True)
class Chosen:
    """`facts` go into the manifest line of the clips it was chosen for."""

    extractor: Extractor
    norm: NormConfig
    facts: Mapping[str, Any]

    @property
    def key(self) -> tuple[Extractor, NormConfig]:
        """Equal where the same is computed."""
        return self.extractor, self.norm

    @property
    def norm_kind(self) -> str:
        from cosyvoice_app.audio.normalise import NORMS

        return next(kind for kind, config in NORMS.items() if type(self.norm) is config)

    def computing(self) -> BatchExtractor:
        from cosyvoice_app.audio.normalised import Normalised

        return self.extractor if self.norm_kind == "none" else Normalised(self.extractor, self.norm)


class Choices:
    """What the command line asks for. Raises ConfigError for what doesn't exist or can't be."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._kind, self._normalise = options.kind, options.normalise
        self._language, self._dialect = options.language, options.dialect
        self._changes = _changes(options.changes)
        plain = _extractor(self._kind, options.rate, self._changes)
        self._rate_hz = plain.rate_hz
        self._sets, self._sets_text = _sets(options.sets)
        if self._sets is None:
            for name in ("language", "dialect"):
                if getattr(options, name) is not None:
                    raise ConfigError(f"--{name} says which set of parameters to take; give --sets too.", param=name)
        # Made in any case, so that what is wrong with it is said before any clip is read.
        self._plain = self._chosen(plain, _norm(self._normalise or "none", plain), {})

    @property
    def needs_clip(self) -> bool:
        """Whether `choose` has to know the clip; else `plain` is the one there is."""
        return self._sets is not None

    @property
    def plain(self) -> Chosen:
        return self._plain

    def choose(self, rate_hz: int, snr_db: float) -> Chosen:
        """For a clip that came with `rate_hz`; an SNR of NaN isn't known. ConfigError when its set can't be had."""
        assert self._sets is not None
        choice = self._sets.choose(self._kind, rate_hz, at_hz=self._rate_hz, language=self._language,
                                   dialect=self._dialect, snr_db=snr_db)  # fmt: skip
        changes = {**choice.parameters.changes, **self._changes}
        extractor = _extractor(self._kind, self._rate_hz, changes)
        norm = choice.parameters.normalisation if self._normalise is None else _norm(self._normalise, extractor)
        return self._chosen(extractor, norm, {
            "set": choice.name, "set_source": choice.source, "matched": choice.matched, "why": choice.why,
            "settings": changes, "snr_db": None if math.isnan(snr_db) else round(snr_db, 2),
        })  # fmt: skip

    def fingerprint(self, file_format: str) -> str:
        """Changes with everything that the files depend on but the audio. With sets that is the table, not what was
        chosen from it: the same clip and table give the same choice.
        """
        facts = {"kind": self._kind, "rate_hz": self._rate_hz, "format": file_format, "version": __version__}
        if self._sets is None:
            facts |= {"config": dataclasses.asdict(self._plain.extractor.config), **self._plain.facts}
        else:
            facts |= {"sets": self._sets_text, "language": self._language, "dialect": self._dialect,
                      "changes": self._changes, "normalise": self._normalise}  # fmt: skip
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]

    def _chosen(self, extractor: Extractor, norm: NormConfig, facts: Mapping[str, Any]) -> Chosen:
        chosen = Chosen(extractor, norm, facts)
        said = {"kind": chosen.norm_kind, **dataclasses.asdict(norm)}
        return dataclasses.replace(chosen, facts={"normalisation": said, **facts})


def _sets(asked: str | None) -> tuple[FeatureSets | None, str]:
    """The sets and the text they are from."""
    if asked is None:
        return None, ""
    from cosyvoice_app.audio import feature_sets

    text = resources.files("cosyvoice_app.audio").joinpath("feature_sets.toml").read_text(encoding="utf-8")
    if asked == BUILT_IN:
        return feature_sets.built_in(), text
    sets = feature_sets.load(Path(asked))
    return sets, text + Path(asked).read_text(encoding="utf-8-sig")


def _norm(kind: str, extractor: Extractor) -> NormConfig:
    from cosyvoice_app.audio.normalise import norm_for

    return norm_for(kind, shift_s=extractor.shift_samples / extractor.rate_hz)


def _changes(asked: list[str]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for change in asked:
        name, equals, value = change.partition("=")
        name = name.strip().replace("-", "_")
        if not name or not equals:
            raise ConfigError(f"--set {change!r} is not of the form name=value.", param="set")
        changes[name] = _value(value)
    return changes


def _extractor(kind: Any, rate_hz: int | None, changes: Mapping[str, Any]) -> Extractor:
    from cosyvoice_app.audio.features import extractor_for

    try:
        defaults = extractor_for(kind, rate_hz).config
        for name, value in changes.items():
            if hasattr(defaults, name):
                _check_type(name, value, getattr(defaults, name))
        return extractor_for(kind, rate_hz, **changes)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"These settings don't go together: {error}.", param="set") from error


def _value(text: str) -> Any:
    """JSON's numbers, true, false and null; anything else is a word."""
    try:
        return json.loads(text)
    except ValueError:
        return text.strip()


def _check_type(name: str, value: Any, default: Any) -> None:
    """A setting has the type of its default; where the default is none, it is a number or none."""
    kinds: tuple[tuple[type, str], ...] = ((bool, "true or false"), (int, "a whole number"), (str, "a word"))
    kind, wanted = next(((kind, words) for kind, words in kinds if isinstance(default, kind)), (float, "a number"))
    fits = type(value) is kind or (kind is float and type(value) is int) or (value is None and default is None)
    if not fits:
        raise ConfigError(f"--set {name} is {value!r}; it must be {wanted}.", param=name)
