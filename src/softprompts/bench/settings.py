"""The settings of the benchmarks. No torch here, so that --help is instant.

The docstring below each attribute is the help of its flag.
"""

from dataclasses import dataclass

from ..errors import UserError, setting


@dataclass(frozen=True)
class CommonSettings:
    """The settings of every benchmark."""

    model: str = "t5-tiny"
    """t5-tiny (bundled), t5-base, t5-large or llama-135m (architectures with random weights), or a
    Hugging Face folder."""

    device: str = "auto"
    """cpu, cuda, or auto."""

    dtype: str = "auto"
    """Precision of the frozen model, fp32 or bf16; auto: bf16 on a GPU, fp32 on a CPU."""

    seed: int = 0
    """Seed of random weights, rows and prompts."""

    threads: int = 0
    """CPU threads; 0: torch's default."""

    warmup: int = 2
    """Untimed rounds before the timed ones."""

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**31:
            raise UserError(f"The seed is {self.seed}; it must be from 0 to below 2,147,483,648.")
        if not 0 <= self.threads <= 1024:
            raise UserError(
                f"{setting('threads')} is {self.threads}; it must be from 1 to 1,024, or 0."
            )
        if self.warmup < 0:
            raise UserError(f"{setting('warmup')} is {self.warmup}; it must not be negative.")

    def check_positive(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) < 1:
                value = getattr(self, name)
                raise UserError(f"{setting(name)} is {value}; it must be at least 1.")


@dataclass(frozen=True)
class TrainingSettings(CommonSettings):
    """Of the benchmark training."""

    workload: str = "synthetic"
    """synthetic (random texts of log-normal length, about 115 tokens, at most 256) or sst2."""

    data_dir: str = ""
    """Folder with the rows of SST-2 (DIR/glue/sst2); default: SOFTPROMPTS_DATA, or the Hugging Face
    hub."""

    prompt: int = 20
    """Prompt tokens."""

    batch: int = 32
    """Rows per step of a run."""

    runs: int = 8
    """Runs of our cohort; 1: no cohort."""

    alone: int = 0
    """Runs of the cohort that PEFT and we also train one at a time; 0: up to four."""

    steps: int = 20
    """Timed steps."""

    warmup: int = 5
    """Untimed steps before them, which include compiling."""

    lr: float = 0.01
    """Learning rate; small, because Adam amplifies rounding errors and losses are compared."""

    peers: str = "auto"
    """Modes of PEFT: any of eager,regions,dynamic,buckets,graphs,padded,autocast; auto: eager, and
    on a GPU also regions (compiled layers)."""

    seconds: float = 0.0
    """Start no compiled mode of PEFT after this many seconds; 0: no limit."""

    compile_ours: bool = True
    """Compile our side too, where possible: on a GPU."""

    peak_tflops: float = 989.0
    """The GPU's peak of dense bf16 TFLOP/s, for the utilisation (H100 and H200: 989)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("prompt", "batch", "runs", "steps")
        if not 0 <= self.alone <= self.runs:
            raise UserError(
                f"{setting('alone')} is {self.alone}; it must be from 1 to the {self.runs} runs, "
                "or 0."
            )


@dataclass(frozen=True)
class InferenceSettings(CommonSettings):
    """Of the benchmark inference."""

    tasks: int = 64
    """Tasks, each with its own prompt and one row."""

    shortest: int = 5
    """Tokens of the shortest random prompt."""

    longest: int = 100
    """Tokens of the longest random prompt."""

    prompts: str = ""
    """Folders of tuned prompts or PEFT adapters, separated by commas, to use in turn instead of
    random prompts."""

    new_tokens: int = 8
    """The most tokens of a generated answer."""

    peers: str = "auto"
    """Modes of PEFT: eager, regions (compiled layers, which takes minutes), or both separated by a
    comma; auto: eager, on a GPU both."""

    rounds: int = 10
    """Timed rounds."""

    warmup: int = 2
    """Untimed rounds before them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("tasks", "shortest", "rounds", "new_tokens")
        if self.longest < self.shortest:
            raise UserError(
                f"{setting('longest')} is {self.longest}; it must be at least the "
                f"{self.shortest} of {setting('shortest')}."
            )


@dataclass(frozen=True)
class DecodingSettings(CommonSettings):
    """Of the benchmark decoding."""

    model: str = "llama-135m"
    """llama-135m (SmolLM2-135M with random weights), or a folder of a decoder-only model."""

    prompt: int = 100
    """Prompt tokens."""

    text: int = 32
    """Text tokens of each row."""

    new_tokens: int = 32
    """Tokens to generate."""

    batches: str = "1,16,64"
    """Rows of a batch; several sizes separated by commas."""

    peers: str = "auto"
    """Modes of PEFT: eager, regions (compiled layers, which takes minutes), or both separated by a
    comma; auto: eager, on a GPU both."""

    rounds: int = 10
    """Timed rounds."""

    warmup: int = 2
    """Untimed rounds before them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("prompt", "text", "new_tokens", "rounds")
        if not all(part.isdecimal() and int(part) for part in self.batches.split(",")):
            raise UserError(
                f"{setting('batches')} is {self.batches!r}; give numbers such as 1,16,64."
            )


@dataclass(frozen=True)
class SmopSettings(CommonSettings):
    """Of the benchmark smop."""

    workload: str = "synthetic"
    """synthetic (random texts of log-normal length, about 115 tokens, at most 256) or sst2."""

    data_dir: str = ""
    """Folder with the rows of SST-2 (DIR/glue/sst2); default: SOFTPROMPTS_DATA, or the Hugging Face
    hub."""

    batch: int = 32
    """Rows per step."""

    steps: int = 20
    """Timed steps."""

    warmup: int = 5
    """Untimed steps before them, which include compiling."""

    compile_ours: bool = True
    """Compile where possible: on a GPU."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("batch", "steps")
