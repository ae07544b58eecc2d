"""The settings of the benchmarks. No torch here, so that --help is instant.

The docstring below each attribute is the help of its flag.
"""

from dataclasses import dataclass
from typing import Literal

from ..config import Settings, option
from ..errors import UserError, setting


@dataclass(frozen=True)
class CommonSettings(Settings):
    """The settings of every benchmark."""

    model: str = "t5-tiny"
    """t5-tiny (included); t5-base, t5-large, llama-135m, llama-1b, llama-8b, bert-base or
    modernbert-base (architectures with random weights); or a model folder."""

    device: str = "auto"
    """cpu, cuda, or auto."""

    dtype: Literal["auto", "fp32", "bf16", "int8", "int4"] = "auto"
    """Precision of the frozen model; auto: bf16 on a GPU, fp32 on a CPU."""

    seed: int = option(0, minimum=0, exclusiveMaximum=2**31)
    """Seed of random weights, rows and prompts."""

    threads: int = option(0, minimum=0, maximum=1024)
    """CPU threads; 0: torch's default."""

    warmup: int = option(2, minimum=0)
    """Untimed rounds before the timed ones."""


@dataclass(frozen=True)
class StepSettings(CommonSettings):
    """The settings of benchmarks that measure training steps."""

    workload: Literal["synthetic", "sst2"] = "synthetic"
    """synthetic: random texts of log-normal length, about 115 tokens, at most 256."""

    data_dir: str = ""
    """Folder with the rows of SST-2 (DIR/glue/sst2); default: SOFTPROMPTS_DATA, or the Hugging Face
    Hub."""

    batch: int = option(32, minimum=1)
    """Rows per step of a run."""

    steps: int = option(20, minimum=1)
    """Timed steps."""

    warmup: int = option(5, minimum=0)
    """Untimed steps before the timed ones; compiling happens here."""

    compile_ours: bool = True
    """Compile our side too, where possible: on a GPU."""


@dataclass(frozen=True)
class SmopSettings(StepSettings):
    """The settings of the benchmark smop."""

    model: str = "t5-tiny"
    """t5-tiny (included); t5-base or t5-large (architectures with random weights); or a folder of a
    T5."""


@dataclass(frozen=True)
class TrainingSettings(StepSettings):
    """The settings of the benchmark training."""

    prompt: int = option(20, minimum=1)
    """Prompt tokens."""

    runs: int = option(8, minimum=1)
    """Runs of our cohort; 1: no cohort."""

    alone: int = option(0, minimum=0)
    """Runs of the cohort that PEFT and we also train one at a time; 0: up to four."""

    lr: float = 0.01
    """Learning rate; small, because Adam amplifies rounding errors and losses are compared."""

    peers: str = "auto"
    """Modes of PEFT: any of eager,regions,dynamic,buckets,graphs,padded,autocast; auto: eager, and
    on a GPU also regions (compiled layers)."""

    seconds: float = 0.0
    """Skip PEFT's remaining compiled modes after this many seconds; 0: no limit."""

    peak_tflops: float = 989.0
    """The GPU's peak dense bf16 TFLOP/s, to compute utilisation (H100 and H200: 989)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alone > self.runs:
            raise UserError(
                f"{setting('alone')} is {self.alone}; it must be at most {self.runs}, "
                f"the number of {setting('runs')}."
            )


@dataclass(frozen=True)
class RoundSettings(CommonSettings):
    """The settings of benchmarks in which all sides answer in turn, round by round."""

    peers: str = "auto"
    """Modes of PEFT: eager, regions (compiled layers, which takes minutes), or both separated by a
    comma; auto: eager, on a GPU both."""

    rounds: int = option(10, minimum=1)
    """Timed rounds."""


@dataclass(frozen=True)
class InferenceSettings(RoundSettings):
    """The settings of the benchmark inference."""

    model: str = "t5-tiny"
    """t5-tiny (included); t5-base or t5-large (architectures with random weights); or a folder of
    an encoder-decoder model."""

    tasks: int = option(64, minimum=1)
    """Tasks, each with its own prompt and one row."""

    shortest: int = option(5, minimum=1)
    """Tokens of the shortest random prompt."""

    longest: int = 100
    """Tokens of the longest random prompt."""

    prompts: str = ""
    """Folders of tuned prompts or PEFT adapters, separated by commas, to use in turn instead of
    random prompts."""

    new_tokens: int = option(8, minimum=1)
    """Maximum number of tokens of a generated answer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.longest < self.shortest:
            raise UserError(
                f"{setting('longest')} is {self.longest}; it must be at least the "
                f"{self.shortest} of {setting('shortest')}."
            )


@dataclass(frozen=True)
class DecodingSettings(RoundSettings):
    """The settings of the benchmark decoding."""

    model: str = "llama-135m"
    """llama-135m (SmolLM2-135M with random weights), or a folder of a decoder-only model."""

    prompt: int = option(100, minimum=1)
    """Prompt tokens."""

    text: int = option(32, minimum=1)
    """Text tokens of each row."""

    new_tokens: int = option(32, minimum=1)
    """Tokens to generate."""

    batches: str = "1,16,64"
    """Rows of a batch; several sizes separated by commas."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(part.isdecimal() and int(part) for part in self.batches.split(",")):
            raise UserError(
                f"{setting('batches')} is {self.batches!r}; give numbers such as 1,16,64."
            )
