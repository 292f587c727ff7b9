"""Parameter sets: every built-in one builds and its evidence is reproduced, the most specific match is taken, and a
user's file that could be misread is refused by set and line.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import clips as clip_maker
import numpy as np
import pytest
import torch
from test_snr import noisy

from cosyvoice_app.audio.feature_conditions import When
from cosyvoice_app.audio.feature_configs import power_of_two
from cosyvoice_app.audio.feature_sets import Choice, FeatureSets, built_in, from_toml, load
from cosyvoice_app.audio.features import KINDS, Kind, extractor_for
from cosyvoice_app.audio.mel import mel_filters
from cosyvoice_app.audio.normalise import ExponentialNorm, NoNorm, UtteranceNorm, WindowNorm, normalise
from cosyvoice_app.audio.vad import measure
from cosyvoice_app.errors import ConfigError


def sets(text: str) -> FeatureSets:
    return from_toml(text, "mine.toml")


def one(name: str, rest: str = "") -> str:
    return f'[[set]]\nname = "{name}"\nwhy = "w"\nevidence = "none"\n{rest}\n'


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rate_hz", [8000, 11025, 16000, 22050, 24000, 44100, 48000])
@pytest.mark.parametrize("snr_db", [None, 5.0, 30.0])
def test_every_choice_builds_and_computes(kind: Kind, rate_hz: int, snr_db: float | None) -> None:
    choice = built_in().choose(kind, rate_hz, language="zh", snr_db=snr_db)
    extractor = choice.extractor()
    assert (extractor.kind, extractor.rate_hz) == (kind, choice.parameters.rate_hz)
    features = extractor(torch.randn(2, extractor.rate_hz // 2, generator=torch.Generator().manual_seed(1)))
    out = normalise(features.values, features.lengths, choice.parameters.normalisation)
    assert out.shape == (2, extractor.frames(extractor.rate_hz // 2), extractor.bins)
    assert out.isfinite().all()
    assert json.loads(json.dumps(choice.to_dict()))["set"] == choice.name
    assert choice.why and choice.evidence and choice.source == "built-in"


def test_the_built_in_table_says_what_it_says() -> None:
    def pick(kind: Kind, rate_hz: int, snr_db: float | None = None) -> Choice:
        return built_in().choose(kind, rate_hz, snr_db=snr_db)

    assert pick("mfcc", 16000).name == "default"
    assert pick("mfcc", 16000).parameters.changes == {}
    assert pick("mfcc", 16000).parameters.normalisation == NoNorm()
    assert pick("mfcc", 8000).name == "narrow band"
    assert pick("mfcc", 8000, 20.0).name == "narrow band"
    assert pick("mfcc", 8000, 14.9).name == "noisy narrow band"
    assert pick("fbank", 48000, 14.9).name == "noisy"
    assert pick("fbank", 48000, 15.0).name == "default"
    assert pick("fbank", 48000, float("nan")).name == "default"
    assert pick("fbank", 48000, -3.0).parameters.normalisation == UtteranceNorm()
    assert pick("whisper-mel", 8000, 0.0).name == pick("mel24k", 44100, 0.0).name == "model input"
    # A telephone clip whose rate was changed still ends at 4 kHz.
    assert built_in().choose("fbank", 8000, at_hz=16000).extractor().config.high_hz == 4000.0
    for language, dialect in itertools.product((None, "en", "zh", "zh-HK", "xx"), (None, "Cantonese")):
        assert built_in().choose("mfcc", 16000, language=language, dialect=dialect).name == "default"


def test_the_evidence_for_fewer_filters_holds() -> None:
    """The ranks that the sets name."""

    def rank(mels: int, rate_hz: int) -> int:
        n_fft = power_of_two(rate_hz // 40)
        filters = mel_filters(mels, n_fft, rate_hz, 0.0, rate_hz / 2, "slaney", True, "cpu", torch.float64)
        return int(torch.linalg.matrix_rank(filters / filters.norm(dim=0), rtol=1e-6))

    assert (rank(128, 8000), rank(128, 16000)) == (99, 116)
    assert [mels for mels in range(60, 80) if rank(mels, 8000) == mels] == list(range(60, 76))


def found_again(choice: Choice, rate_hz: int) -> float:
    """Share of noisy speech frames whose nearest clean frame is within 30 ms of their own place, noise at 10 dB."""
    shares = []
    for name, colour in itertools.product(("p0_en.flac", "p1_zh.flac"), ("white", "pink")):
        x, source_hz = clip_maker.read(name)
        x = clip_maker.change_rate(x, source_hz, rate_hz).astype(np.float32)
        clean, noised = (
            normalise(choice.extractor()(torch.from_numpy(y)[None]).values, None, choice.parameters.normalisation)[0]
            for y in (x, noisy(name, colour, 10, rate_hz))
        )
        active = measure(x, rate_hz).active
        at = torch.from_numpy(np.flatnonzero(active[: len(clean)]))
        nearest = at[torch.cdist(noised[at], clean[at]).argmin(1)]
        shares.append(float(((nearest - at).abs() <= 3).float().mean()))
    return 100 * float(np.mean(shares))


def test_the_evidence_for_normalising_in_noise_holds() -> None:
    for kind, with_, without in (("mfcc", 39, 14), ("fbank", 44, 14), ("logmel", 41, 13)):
        assert found_again(built_in().choose(kind, 16000, snr_db=10.0), 16000) == pytest.approx(with_, abs=2)
        assert found_again(built_in().choose(kind, 16000), 16000) == pytest.approx(without, abs=2)
    assert found_again(built_in().choose("mfcc", 8000, snr_db=10.0), 8000) == pytest.approx(44, abs=2)
    usual = sets(one("usual", 'normalisation = { kind = "utterance" }')).choose("mfcc", 8000)
    assert found_again(usual, 8000) == pytest.approx(34, abs=2)


def test_ones_own_sets_go_first_and_the_built_in_ones_fill_in(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        one("cantonese", 'when = { language = ["zh"], dialect = ["Yue"] }\nfbank = { bins = 40, low_hz = 60 }\n'
            'normalisation = { kind = "window", window_s = 3.0 }')
        + one("english", 'when = { language = ["EN"] }\nnormalisation = { kind = "exponential", time_constant_s = 2 }'),
        encoding="utf-8",
    )  # fmt: skip
    mine = load(file)
    choice = mine.choose("fbank", 16000, language="zh-HK", dialect="yue", snr_db=3.0)
    assert (choice.name, choice.source) == ("cantonese", "mine.toml")
    assert choice.matched == "language zh, dialect yue"
    assert choice.parameters.changes == {"bins": 40, "low_hz": 60.0}
    assert choice.parameters.normalisation == WindowNorm(300)
    assert choice.extractor().bins == 40
    assert mine.choose("fbank", 16000, language="zh", snr_db=3.0).name == "noisy"
    assert mine.choose("fbank", 16000, dialect="yue").name == "default"
    # Seconds become frames by the features' own shift: 20 ms of this kind.
    assert mine.choose("mel24k", 24000, language="en").parameters.normalisation == ExponentialNorm(100.0)
    assert mine.choose("mfcc", 16000, language="en").parameters.normalisation == ExponentialNorm(200.0)


def test_the_most_specific_set_is_taken_wherever_it_stands() -> None:
    rows = [
        one("any"),
        one("low", "when = { rate_to_hz = 16000 }"),
        one("lower", "when = { rate_to_hz = 8000 }"),
        one("zh", 'when = { language = ["zh"] }'),
        one("zh low", 'when = { language = ["zh"], rate_to_hz = 16000 }'),
        one("zh lower", 'when = { language = ["zh"], rate_to_hz = 8000 }'),
    ]
    for order in itertools.permutations(rows):
        table = sets("".join(order))
        assert table.choose("fbank", 22050).name == "any"
        assert table.choose("fbank", 11025).name == "low"
        assert table.choose("fbank", 8000).name == "lower"
        assert table.choose("fbank", 22050, language="zh").name == "zh"
        assert table.choose("fbank", 11025, language="zh").name == "zh low"
        assert table.choose("fbank", 8000, language="zh").name == "zh lower"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense =", "is not valid TOML"),
        ("", r"no \[\[set\]\] table"),
        ("[set]\nname = 'x'", r"no \[\[set\]\] table"),
        ("[other]\n" + one("x"), '"other" means nothing here'),
        (one("x", "bins = 3"), "'bins' is unknown; a set has name, why, evidence, when"),
        ('\n\n[[set]]\nname = "x"\nwhy = "w"\n', r'set "x" \(line 3\): evidence must be there, as text \(say so'),
        ('[[set]]\nwhy = "w"\nevidence = "e"\n', r"set \"number 1\" \(line 1\): name must be there"),
        (one("a") + one("x", "fbank = { mels = 3 }"), r'set "x" \(line 6\): fbank has no setting .mels.; it has bins'),
        (one("x", "fbank = { bins = 40.0 }"), "fbank bins is 40.0; it must be a whole number"),
        (one("x", "fbank = { bins = true }"), "fbank bins is True"),
        (one("x", "fbank = { low_hz = nan }"), "fbank low_hz is nan"),
        (one("x", 'fbank = { window = "flat" }'), "one of 'povey', 'hann', 'hamming'"),
        (one("x", "fbank = { bins = 0 }"), "bins is 0; it must be a whole number greater than 0"),
        (one("x", "fbank = { preemphasis = 5.0 }"), "fbank preemphasis is 5.0; .* at most 1"),
        (one("x", 'normalisation = { kind = "window", window_s = inf }'), "window_s is inf"),
        (one("x", 'normalisation = { kind = "utterance", floor = inf }'), "floor is inf"),
        (one("x", "fbank = { high_hz = 9000 }"), "must lie within 0 and 8000 Hz"),
        (one("x", "when = { rate_to_hz = 8000 }\nfbank = { high_hz = 6000 }"), "within 0 and 4000 Hz"),
        (one("x", "fbank = 3"), "fbank is 3; it must be a table"),
        (one("x", 'when = { kind = ["mfcc"] }\nfbank = { bins = 3 }'), "which its own condition leaves out"),
        (one("x", "when = { rate = 3 }"), "when has no 'rate'; it has kind, language, dialect, rate_from_hz"),
        (one("x", 'when = { kind = ["mel"] }'), "kind 'mel' is unknown; there are mfcc, fbank"),
        (one("x", 'when = { language = "zh" }'), r"it must be a list of names, such as"),
        (one("x", "when = { language = [] }"), "it must be a list of names"),
        (one("x", 'when = { language = ["zh-CN"] }'), "regions go into dialect"),
        (one("x", 'when = { rate_to_hz = "8k" }'), "rate_to_hz is '8k'; it must be a number"),
        (one("x", "when = { rate_from_hz = 9, rate_to_hz = 8 }"), "no rate lies between 9 and 8 Hz"),
        (one("x", "when = { snr_from_db = 9, snr_below_db = 9 }"), "no SNR lies from 9 to below 9 dB"),
        (one("x", "normalisation = { variance = true }"), "needs a kind"),
        (one("x", 'normalisation = { kind = "cmvn" }'), "allowed: none, utterance, exponential, window"),
        (one("x", 'normalisation = { kind = "window", frames = 2.5 }'), "a whole number"),
        (one("x", 'normalisation = { kind = "window", shift_s = 2.5 }'), "no 'shift_s'"),
        (one("x", "normalisation = { kind = 3 }"), "must be one of none"),
        (one("x") + one("x", "when = { rate_to_hz = 8000 }"), r'"x" \(line 1\) and set "x" \(line 6\) have one name'),
        (one("x") + one("y"), r'set "x" \(line 1\) and set "y" \(line 6\) have the same condition \(any clip\)'),
        (one("x", "when = { rate_to_hz = 16000 }") + one("y", "when = { snr_below_db = 9 }"),
         "both match at rate up to 16000 Hz, SNR below 9 dB, and neither lies within the other"),
        (one("x", "when = { rate_to_hz = 16000 }") + one("y", "when = { rate_from_hz = 16000 }"),
         "both match at rate from 16000 up to 16000 Hz"),
        (one("x", 'when = { language = ["zh", "en"] }') + one("y", 'when = { language = ["en", "fr"] }'),
         "both match at language en,"),
    ],
)  # fmt: skip
def test_what_could_be_misread_is_refused_by_set_and_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        sets(text)
    assert caught.value.message.startswith("mine.toml")


def test_sets_side_by_side_are_no_clash_and_a_third_settles_one() -> None:
    sets(one("a", "when = { rate_to_hz = 15999 }") + one("b", "when = { rate_from_hz = 16000 }"))
    sets(one("a", "when = { snr_below_db = 9 }") + one("b", "when = { snr_from_db = 9 }"))
    cross = one("a", "when = { rate_to_hz = 8000 }") + one("b", "when = { snr_below_db = 9 }")
    table = sets(cross + one("both", "when = { rate_to_hz = 8000, snr_below_db = 9 }"))
    assert table.choose("fbank", 8000, snr_db=1.0).name == "both"
    with pytest.raises(ConfigError, match="No set of parameters matches fbank at 16000 Hz"):
        table.choose("fbank", 16000)


def test_several_faults_are_listed_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        sets("".join(one(f"s{i}", "fbank = { mels = 3 }") for i in range(12)))
    assert caught.value.message.count("has no setting") == 8
    assert "and 4 more" in caught.value.message


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        load(tmp_path / "none.toml")
    (tmp_path / "x.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="can't be read"):
        load(tmp_path / "x.toml")
    (tmp_path / "x.toml").write_bytes(b"#" * 200_001)
    with pytest.raises(ConfigError, match="larger than"):
        load(tmp_path / "x.toml")


def test_what_is_not_known_matches_no_condition_on_it() -> None:
    when = When(language=frozenset({"zh"}), snr=(0.0, 9.0))
    assert when.matches("mfcc", "zh", None, 8000, 0.0)
    assert not when.matches("mfcc", None, None, 8000, 0.0)
    assert not when.matches("mfcc", "zh", None, 8000, None)
    assert not when.matches("mfcc", "zh", None, 8000, 9.0)


def test_a_set_that_fails_at_a_clips_rate_is_named() -> None:
    table = sets(one("any") + one("wide", 'when = { language = ["zh"] }\nfbank = { high_hz = 7600 }'))
    assert table.choose("fbank", 16000, language="zh").name == "wide"
    with pytest.raises(ConfigError, match=r'^mine.toml: set "wide" \(line 6\): .* within 0 and 4000 Hz'):
        table.choose("fbank", 8000, language="zh")


def test_unknown_kinds_and_impossible_rates_are_refused() -> None:
    with pytest.raises(ConfigError, match="there are mfcc, fbank"):
        built_in().choose("mel", 16000)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="is for 24000 Hz"):
        built_in().choose("mel24k", 16000, at_hz=16000)
    assert extractor_for("mel24k").rate_hz == 24000
