"""Maintainers' script: make the committed table of stock voices (`data/styles.*`) from the released voice packs.

    python -m cosyvoice_app.engines.lite.train.derive_styles VOICES_DIR KOKORO CAMPPLUS VOCAB

VOICES_DIR holds `*.bin` packs of Kokoro-82M v1.0 as in the npm package kokoro-js 1.2.1 (Apache-2.0): float32 [510,
256], one style per symbol count. They hardly vary along that axis (standard deviation 0.04 against 0.14 between
voices), so each voice is kept as its mean. KOKORO and CAMPPLUS are the converted safetensors, VOCAB the symbol table.
Every voice then speaks a sentence of English and one of Mandarin, on which its speaker vector and statistics are
measured, and rated by DNSMOS (package speechmos 0.0.1.1, needed here and nowhere else). Takes a few minutes on a CPU.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

import numpy as np
import torch
import torchaudio
from safetensors.torch import save_file
from torch import Tensor

from cosyvoice_app.engines.campplus import SpeakerNet
from cosyvoice_app.engines.lite.acoustic import AcousticNet, expand, whole_frames
from cosyvoice_app.engines.lite.config import LiteConfig
from cosyvoice_app.engines.lite.speaker import measure
from cosyvoice_app.engines.lite.styles import DATA
from cosyvoice_app.engines.lite.vocoder import Decoder
from cosyvoice_app.nn.loading import assign_strict, load_tensors

SENTENCES = (
    "stɹˈɔŋ wˈɪndz pˈʊʃt ðə hˈɛvi klˈWdz əkɹˈɔs ɐ wˈId blˈu skˈI.",
    "wo↓mən ɕja↘u↓ sa→ntjɛ↓n ʦai↘ tʰu↗ʂu→kwa↓n mə↗nkʰou↓ ʨjɛ↘nmjɛ↘n, ɻa↗nxou↘ i↘ʨʰi↓ ʨʰy↘ ꭧʰɨ→fa↘n.",
)
LANGUAGES = {"a": "en-us", "b": "en-gb", "e": "es", "f": "fr", "h": "hi", "i": "it", "j": "ja", "p": "pt-br", "z": "zh"}
GENDERS = {"f": "female", "m": "male"}
NOT_SOUNDS = set(" .,!?:;—…\"()“”ˈˌː→↗↓↘")


class Speech:
    """Kokoro speaking symbols in a given style."""

    def __init__(self, kokoro: Path, vocab: Path) -> None:
        state = load_tensors(kokoro)
        config = LiteConfig()
        self.rate_hz, self.acoustic, self.decoder = config.rate_hz, AcousticNet(config).eval(), Decoder(config).eval()
        split = len("decoder.")
        assign_strict(self.decoder, {k[split:]: v for k, v in state.items() if k.startswith("decoder.")}, str(kokoro))
        assign_strict(self.acoustic, {k: v for k, v in state.items() if not k.startswith("decoder.")}, str(kokoro))
        symbols = json.loads(vocab.read_text(encoding="utf-8"))
        self.symbols: dict[str, int] = symbols.get("vocab", symbols)

    @torch.no_grad()
    def __call__(self, sentence: str, style: Tensor, seed: int = 1) -> Tensor:
        """Samples [n] at 24 kHz."""
        ids = torch.tensor([[0, *(self.symbols[c] for c in sentence), 0]])
        acoustic, prosodic = style[None, :128], style[None, 128:]
        encoded = self.acoustic.encode(ids, torch.tensor([ids.shape[1]]), prosodic)
        frames = whole_frames(encoded.frames[0])
        f0, energy = self.acoustic.curves(expand(encoded.prosody[0], frames)[None], prosodic)
        noise = torch.randn(1, int(frames.sum()) * 600, generator=torch.Generator().manual_seed(seed))
        samples: Tensor = self.decoder(expand(encoded.text[0], frames)[None], f0, energy, acoustic, noise)[0]
        return samples


def _quality(samples: Tensor, rate_hz: int) -> float:
    """DNSMOS overall, 1 to 5."""
    from speechmos import dnsmos

    at16 = torchaudio.functional.resample(samples, rate_hz, 16_000)
    return float(dnsmos.run((at16 / at16.abs().max().clamp(min=1.0)).numpy(), 16_000)["ovrl_mos"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("voices_dir", "kokoro", "campplus", "vocab"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--out", type=Path, default=DATA)
    a = parser.parse_args()
    speech, speakers = Speech(a.kokoro, a.vocab), SpeakerNet.load(a.campplus)
    rows, styles, vectors = [], [], []
    digest = hashlib.sha256()
    for path in sorted(a.voices_dir.glob("*.bin")):
        raw = path.read_bytes()
        digest.update(raw)
        style = torch.from_numpy(np.frombuffer(raw, np.float32).reshape(-1, 256).mean(0))
        style = style.half().float()  # as it will be stored
        clips = [speech(sentence, style) for sentence in SENTENCES]
        with torch.no_grad():
            own = [speakers.embed(torchaudio.functional.resample(c[None], speech.rate_hz, 16_000))[0] for c in clips]
        stats = [measure(c.numpy(), speech.rate_hz) for c in clips]
        sounds = [sum(c not in NOT_SOUNDS for c in s) for s in SENTENCES]
        voiced = [s for s in stats if s.f0_median_hz > 0]
        rows.append({
            "name": path.stem, "language": LANGUAGES[path.stem[0]], "gender": GENDERS[path.stem[1]],
            "f0_median_hz": round(float(np.exp(np.mean([np.log(s.f0_median_hz) for s in voiced]))), 1),
            "f0_range_semitones": round(float(np.mean([s.f0_range_semitones for s in voiced])), 2),
            "syllables_per_s": round(float(np.mean([s.syllables_per_s for s in stats])), 2),
            "symbols_per_s": round(sum(sounds) / sum(s.speech_s for s in stats), 2),
            "quality_mos": round(float(np.mean([_quality(c, speech.rate_hz) for c in clips])), 2),
        })
        styles.append(style)
        vectors.append(torch.nn.functional.normalize(torch.stack(own).mean(0), dim=0))
        print(json.dumps(rows[-1]), "en/zh cosine", round(float(own[0] @ own[1]), 3), flush=True)
    a.out.mkdir(parents=True, exist_ok=True)
    tensors = {"styles": torch.stack(styles).half(), "speakers": torch.stack(vectors).half()}
    save_file(tensors, a.out / "styles.safetensors")
    table = {
        "about": "Mean style vectors of the 54 voices of Kokoro-82M v1.0 by hexgrad, and measurements of their speech. "
                 "Derived by engines/lite/train/derive_styles.py.",
        "licence": "Apache-2.0",
        "origin": "https://huggingface.co/hexgrad/Kokoro-82M (voices), as packed in npm kokoro-js 1.2.1",
        "packs_sha256": digest.hexdigest(),
        "voices": rows,
    }
    (a.out / "styles.json").write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
