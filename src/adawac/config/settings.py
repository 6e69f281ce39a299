"""The settings of a training run; the defaults are the paper's recipe for Synapse."""

# ruff: noqa: RUF009  (`setting` and `section` are `dataclasses.field` with a help text)

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from adawac.config.objective_options import ObjectiveOptions, Preset
from adawac.config.schema import Config, section, setting
from adawac.errors import ConfigError, MissingFileError, check_known, near
from adawac.registry import Registry

_RECIPES = Path(__file__).parent / "recipes"  # those of the paper's experiments, and ours


def recipe_names() -> list[str]:
    """Return the names of the recipes that come with the package."""
    return sorted(path.stem for path in _RECIPES.glob("*.yaml"))


def recipe_path(name: Path | str) -> Path:
    """Return the configuration file that `name` means: a file, or a recipe such as `acdc-unet`."""
    path = Path(name)
    if path.is_file() or path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        return path
    known = recipe_names()
    check_known(str(name), known, "a configuration file or a recipe", MissingFileError)
    return _RECIPES / f"{name}.yaml"


@dataclass(frozen=True, kw_only=True)
class ViewConfig(Config):
    """The distribution of views; the defaults are the paper's.

    Examples:
        >>> ViewConfig(turn=0.0, gamma=0.2).max_angle  # no turns by 90°, and a random gamma
        20
    """

    turn: float = setting(0.5, "Probability of a turn by k·90° and a flip along a random axis.", least=0, most=1)
    rotate: float = setting(1.0, "Probability of a small rotation where there is no such turn.", least=0, most=1)
    max_angle: int = setting(20, "Rotate by whole degrees in [-max_angle, max_angle).", least=0, most=180)
    scale: float = setting(0.0, "Enlarge by a factor in [1 - scale, 1 + scale].", least=0, most=0.95)
    shift: float = setting(0.0, "Move by up to this fraction of the image along each in-plane axis.", least=0, most=1)
    gamma: float = setting(
        0.0, "Raise intensities, scaled to their range, to a power in [1/(1 + gamma), 1 + gamma].", least=0, most=100
    )
    noise: float = setting(0.0, "Add normal noise with a standard deviation in [0, noise].", least=0)
    brightness: float = setting(0.0, "Add a number in [-brightness, brightness] to all channels.", least=0)
    contrast: float = setting(
        0.0,
        "Stretch intensities about the middle of their range by a factor in [1/(1 + contrast), 1 + contrast].",
        least=0,
        most=100,
    )
    saturation: float = setting(
        0.0, "Multiply the saturation of colours by a factor in [1 - saturation, 1 + saturation].", least=0, most=1
    )
    hue: int = setting(0, "Turn the hue of colours by whole degrees in [-hue, hue).", least=0, most=180)
    blur: float = setting(
        0.0, "Blur with a Gaussian whose standard deviation is in [0, blur] pixels of the view.", least=0, most=20
    )
    interpolation: Literal["nearest", "bilinear", "cubic"] = setting(
        "bilinear", "How images are read; labels are read by nearest neighbour.", aliases="order"
    )
    mode: Literal["affine", "released"] = setting(
        "affine", "An affine map, or the released code's transform with SciPy's numbers, on the CPU."
    )

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Yield what the released code's transform cannot do."""
        optional = ("scale", "shift", "gamma", "noise", "brightness", "contrast", "saturation", "hue", "blur")
        extras = [name for name in optional if getattr(self, name)]
        if self.mode == "released" and extras:
            yield "mode", f"expected affine with {', '.join(extras)}, but got 'released', which has no such options."


# Methods of other packages may have further options.
BUILT_IN_METHODS = {
    *("baseline", "pair", "pseudo-adawac", "acr-only", "reweight-only", "pm-dro", "adawac"),
    *("trim-train", "trim-train+acr", "trim-ratio", "trim-ratio+acr", "mean-teacher"),
}

# Further ones have a colon (`smp:…`, `package.module:factory`), or are those of other packages.
BUILT_IN_MODELS = {"unet", "transunet", "transunet-vit", "transunet-small"}


@dataclass(frozen=True, kw_only=True)
class DataConfig(Config):
    """Which samples are trained on, and how they reach the network."""

    store: Path | None = setting(
        None,
        "The prepared store (`adawac prepare`); null is the built-in phantom.",
        aliases="root path dataset data_dir",
    )
    subset: Literal["full", "half-slice", "half-vol", "half-sparse"] = setting("full", "Part of the training samples.")
    split: str = setting(
        "paper", "Who trains and tests: paper, stratified, fold:K/N, or a folder with train.txt.", aliases="fold folds"
    )
    image_size: tuple[int, int] = setting(
        (224, 224),
        "Height and width of the network's input.",
        least=1,
        aliases="size img_size input_size crop_size patch_size resolution",
    )
    batch_size: int = setting(
        24,
        "Samples in a batch, over all devices; the last batch may be smaller.",
        least=1,
        aliases="batch bs batchsize",
    )
    unlabelled_share: float = setting(
        0.0, "Share of unlabelled samples in a batch; 0 trains on labelled ones alone.", least=0, below=1
    )
    views: dict[str, Any] = setting(
        {}, "Options of the random views, for `adawac.config.ViewConfig`.", aliases="augmentation augmentations augment"
    )
    residence: Literal["auto", "device", "stream"] = setting(
        "auto", "Keep the samples in device memory, or stream them; auto: in memory if they fit."
    )
    workers: int = setting(
        2, "Processes that read samples where these are streamed.", least=0, aliases="num_workers n_workers"
    )

    def option_types(self) -> Mapping[str, type[Config]]:
        """Return what the options of the views are."""
        return {"views": ViewConfig}


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Config):
    """The network, and where its latents are read."""

    name: str = setting(
        "unet",
        "The network's name, as `adawac models` lists it.",
        aliases="model network net arch architecture backbone encoder",
    )
    pretrained: str | None = setting(
        None, "Pretrained weights: imagenet, imagenet-offline or a file; null: none.", aliases="weights checkpoint"
    )
    tap: str | None = setting(None, "Submodule whose output is the latent; null: the network's own encoder.")
    options: dict[str, Any] = setting({}, "Further options, for `adawac.models.build`.")


@dataclass(frozen=True, kw_only=True)
class MethodConfig(Config):
    """How cross-entropy is weighed against consistency."""

    name: str = setting("adawac", "The method's name, one of `adawac.METHODS`.", aliases="method")
    preset: Preset = setting(
        "paper", "The objective: as the paper's text says, as its released code did, or in relative units."
    )
    options: dict[str, Any] = setting({}, "Options that replace the preset's, for `adawac.build_method`.")
    hold_epochs: int = setting(0, "Epochs in which all weights stay at one half; the paper's move at once.", least=0)

    def option_types(self) -> Mapping[str, type[Config]]:
        """Return what the options of our own methods are."""
        return {"options": ObjectiveOptions} if self.name in BUILT_IN_METHODS else {}


@dataclass(frozen=True, kw_only=True)
class OptimConfig(Config):
    """How the network descends."""

    optimizer: Literal["sgd", "adamw"] = setting("sgd", "The optimiser.", aliases="optimiser opt")
    lr: float = setting(
        0.01, "Learning rate, after the warm-up.", above=0, aliases="learning_rate rate base_lr lr0 max_lr"
    )
    momentum: float = setting(0.9, "Momentum of SGD.", least=0, below=1)
    betas: tuple[float, float] = setting((0.9, 0.999), "Decay rates of AdamW's two averages.", least=0, below=1)
    weight_decay: float = setting(1e-4, "Weight decay.", least=0, aliases="wd decay l2")
    schedule: Literal["constant", "poly", "cosine"] = setting(
        "constant", "Learning rate over the steps of a run.", aliases="scheduler lr_schedule lr_scheduler"
    )
    power: float = setting(0.9, "Exponent of the poly schedule.", above=0)
    warmup_epochs: float = setting(
        0.0, "Epochs over which the learning rate rises from 0.", least=0, aliases="warmup warm_up"
    )
    clip_norm: float | None = setting(
        None,
        "Clip the gradient's norm to this; null: do not.",
        above=0,
        aliases="clip grad_clip clip_grad clip_grad_norm gradient_clip_val max_norm",
    )
    accumulate: int = setting(
        1,
        "Batches whose gradients are added up before a step.",
        least=1,
        aliases="accumulation grad_accum gradient_accumulation accumulate_grad_batches",
    )
    ema_decay: float | None = setting(
        None, "Decay of averaged weights, which are then evaluated; null: none.", above=0, below=1, aliases="ema"
    )


@dataclass(frozen=True, kw_only=True)
class HardwareConfig(Config):
    """What it runs on, and how."""

    accelerator: Literal["auto", "cpu", "cuda", "mps"] = setting(
        "auto", "Where to train; auto: on CUDA or the CPU.", aliases="device"
    )
    devices: int = setting(1, "Devices on each machine.", least=1, aliases="gpus num_gpus ranks world_size")
    nodes: int = setting(1, "Machines.", least=1, aliases="num_nodes machines")
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = setting(
        "auto",
        "Precision of the network; losses stay in fp32. auto: bf16 on a GPU that computes in it, else fp32.",
        aliases="amp fp16 bf16 dtype",
    )
    compile: bool = setting(False, "Compile the network with torch.compile.")
    capture: Literal["auto", "never"] = setting("auto", "Replay a step as one CUDA graph where that is possible.")
    fused: bool = setting(True, "On a GPU, use our own kernels for norms, upsampling, pooling and narrow convolutions.")
    deterministic: bool = setting(False, "Use deterministic algorithms only: slower, the same bits every time.")
    sync_batchnorm: bool = setting(False, "Share batch statistics between devices.")

    def check_devices(self, available: int) -> None:
        """Refuse more devices than a machine has."""
        if self.devices > available:
            raise ConfigError(
                f"Expected at most {available} devices, as many as there are here, but got {self.devices}. Lower "
                "--devices (hardware.devices)."
            )


@dataclass(frozen=True, kw_only=True)
class ValidationConfig(Config):
    """When to validate, and which weights are the result."""

    every: int = setting(
        0, "Validate after every so many epochs; 0: never.", least=0, aliases="val_every check_val_every_n_epoch"
    )
    select: Literal["last", "best"] = setting("last", "Take the last weights, or those that validated best.")
    metric: Literal["dice", "hd95"] = setting("dice", "What best means: the highest Dice, or the lowest HD95.")
    convention: Literal["strict", "adawac", "transunet", "nan"] = setting("strict", "What empty masks score.")


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Config):
    """A training run: `adawac train`."""

    epochs: int = setting(
        150, "Passes over the training samples.", least=1, aliases="epoch max_epochs num_epochs n_epochs"
    )
    seed: int = setting(1234, "All randomness follows from it.", least=0, aliases="random_seed random_state")
    forward: Literal["joint", "separate", "encoder", "encoder-detached"] = setting(
        "joint",
        "Both views in one pass, in two, or the second one through the encoder alone, with or without gradient.",
    )
    data: DataConfig = section(DataConfig, "Which samples are trained on, and how they reach the network.")
    model: ModelConfig = section(ModelConfig, "The network, and where its latents are read.")
    method: MethodConfig = section(MethodConfig, "How cross-entropy is weighed against consistency.")
    optim: OptimConfig = section(OptimConfig, "How the network descends.")
    hardware: HardwareConfig = section(HardwareConfig, "What it runs on, and how.")
    validation: ValidationConfig = section(ValidationConfig, "When to validate, and which weights are the result.")
    checkpoint_every: int = setting(1, "Save a checkpoint after every so many epochs.", least=1, aliases="save_every")
    track: tuple[Literal["csv", "tensorboard", "wandb", "mlflow"], ...] = setting(
        (),
        "Report to these trackers as well; the run folder is always written.",
        aliases="tracker trackers logger wandb tensorboard mlflow",
    )

    @property
    def summary(self) -> dict[str, str | int]:
        """What a list of runs shows of this one."""
        return {
            "method": self.method.name,
            "preset": self.method.preset,
            "model": self.model.name,
            "subset": self.data.subset,
            "seed": self.seed,
        }

    def library_conflicts(self) -> Iterator[tuple[str, str]]:
        """Yield the options that the network does not have, as far as that is known without building it."""
        model = self.model
        options = {name for name, value in model.options.items() if value is not None}  # null takes an option away
        if options - ({"faithful"} if model.name.startswith("transunet") else set()):
            from adawac.models.networks import option_names

            known = option_names(model.name)
            for name in sorted(options - known if known else ()):
                yield f"model.options.{name}", f"unknown option of {model.name}. Near names: {near(name, known or ())}."

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Yield what cannot be done together."""
        every, warmup = self.validation.every, self.optim.warmup_epochs
        if self.validation.select == "best" and not 0 < every <= self.epochs:
            problem = f"best needs a validation within {self.epochs} epochs, but validation.every is {every}."
            yield "validation.select", f"{problem} Set validation.every, or select: last."
        if warmup >= self.epochs:
            problem = f"expected fewer than the {self.epochs} epochs of the run, but got {warmup:g}."
            yield "optim.warmup_epochs", f"{problem} Shorten the warm-up."
        if self.method.hold_epochs >= self.epochs:
            problem = f"expected fewer than the {self.epochs} epochs of the run, but got {self.method.hold_epochs}."
            yield "method.hold_epochs", f"{problem} The weights would never move: lower it, or take the method pair."
        if self.hardware.accelerator == "cpu" and self.hardware.precision in ("fp16", "tf32"):
            yield "hardware.precision", f"{self.hardware.precision} needs a GPU. Choose fp32 or bf16 for the CPU."
        ranks = self.hardware.devices * self.hardware.nodes
        if self.data.batch_size < ranks:
            problem = f"expected a sample for each of {ranks} devices, but got {self.data.batch_size}."
            yield "data.batch_size", f"{problem} Take fewer devices, or enlarge the batch."

    def check_names(self) -> None:
        """Refuse a method or a network that nobody provides; that needs no torch, whose import takes seconds."""
        for kind, name, names in (
            ("method", self.method.name, BUILT_IN_METHODS),
            ("model", self.model.name, BUILT_IN_MODELS),
        ):
            if ":" not in name:
                Registry(kind, dict.fromkeys(names)).check(name)


NOT_DECISIVE = (
    "data.store",  # by its content, not by its path
    "data.residence",
    "data.workers",
    "hardware.accelerator",
    "hardware.devices",
    "hardware.nodes",
    "hardware.compile",
    "hardware.capture",
    "checkpoint_every",
    "track",
)
"""Settings that say where and how fast a run runs, but do not decide its result."""

ROUNDING = ("hardware.fused", "hardware.deterministic")
"""Settings that change the last bits of a result, and nothing that one would compare."""


def decisive(settings: Mapping[str, Any], *others: str) -> dict[str, Any]:
    """Return settings (as plain data) without those of `NOT_DECISIVE` and without `others`, both by dotted path."""
    left_out = {*NOT_DECISIVE, *others}

    def keep(section: Mapping[str, Any], above: str) -> dict[str, Any]:
        return {
            name: keep(value, f"{above}{name}.") if isinstance(value, Mapping) else value
            for name, value in section.items()
            if f"{above}{name}" not in left_out
        }

    return keep(settings, "")
