import functools
import operator
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from adawac.config import (
    Config,
    DataConfig,
    MethodConfig,
    ModelConfig,
    ObjectiveOptions,
    OptimConfig,
    TrainConfig,
    ViewConfig,
    assignments,
    dumps,
    from_dict,
    leaves,
    load,
    override,
    save,
    section,
    setting,
    to_dict,
)
from adawac.config.settings import BUILT_IN_METHODS, BUILT_IN_MODELS, NOT_DECISIVE, ROUNDING, decisive
from adawac.config.yaml_text import lines
from adawac.errors import ConfigError, MissingFileError
from adawac.methods import _BUILT_IN
from adawac.models import MODELS
from tests.places import REPOSITORY

# ruff: noqa: RUF009  (`setting` and `section` are `dataclasses.field` with a help text)


@dataclass(frozen=True, kw_only=True)
class Inner(Config):
    rate: float = setting(0.5, "A share.", least=0, below=1)
    sizes: tuple[int, ...] = setting((1, 2), "Sizes.", above=0)
    pair: tuple[str, float] = setting(("a", 1.0), "A name and a number.")


@dataclass(frozen=True, kw_only=True)
class Outer(Config):
    needed: int
    flag: bool = setting(False, "On or off.")
    text: str = setting("", "Any text.")
    maybe: float | None = setting(None, "A number or none.")
    either: int | Literal["auto"] = setting("auto", "A number or auto.")
    mode: Literal["fast", "slow"] = setting("fast", "How.")
    path: Path | None = setting(None, "Where.")
    options: dict[str, Any] = setting({}, "Anything.")
    inner: Inner = section(Inner, "Inner settings.")

    def conflicts(self) -> Iterator[tuple[str, str]]:
        if self.mode == "slow" and self.flag:
            yield "mode", "slow and flag do not go together. Drop one."


TEXT = st.text(max_size=20)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
PATHS = (
    st.lists(st.text(st.characters(exclude_characters="/\0"), min_size=1), min_size=1, max_size=3)
    .map("/".join)
    .map(Path)
)
INNER = st.builds(
    Inner,
    rate=st.floats(0, 1, exclude_max=True),
    sizes=st.lists(st.integers(1, 10**30)).map(tuple),
    pair=st.tuples(TEXT, NUMBER),
)
OUTER = st.builds(
    Outer,
    needed=st.integers(),
    flag=st.booleans(),
    text=TEXT
    | st.sampled_from(
        ["1e-4", "null", "yes", "2020-01-01", "~", "0x1f", "1_0", "a: b", "#", " x ", "\u2028", "\ud800"]
    ),
    maybe=st.none() | NUMBER,
    either=st.integers() | st.just("auto"),
    mode=st.just("fast"),
    path=st.none() | PATHS,
    options=st.dictionaries(TEXT, PLAIN, max_size=4),
    inner=INNER,
)


@given(OUTER)
def test_yaml_gives_an_equal_object_back(tmp_path_factory: pytest.TempPathFactory, config: Outer) -> None:
    path = tmp_path_factory.mktemp("config") / "file.yaml"
    save(config, path)
    assert load(Outer, path) == config
    assert from_dict(Outer, to_dict(config)) == config


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "epochs": st.integers(2, 10**6),
            "seed": st.integers(0, 2**63),
            "forward": st.sampled_from(["joint", "separate", "encoder"]),
            "optim.lr": st.floats(1e-12, 1e3),
            "optim.schedule": st.sampled_from(["constant", "poly", "cosine"]),
            "optim.clip_norm": st.none() | st.floats(1e-6, 1e6),
            "optim.betas": st.tuples(st.floats(0, 0.99), st.floats(0, 0.99)),
            "data.image_size": st.tuples(st.integers(1, 4096), st.integers(1, 4096)),
            "method.options": st.fixed_dictionaries(
                {},
                optional={
                    "eta_beta": st.floats(0, 100),
                    "rho": st.sampled_from(["rms", "cosine"]),
                    "supervision": st.lists(st.floats(0.1, 1), min_size=1).map(tuple),
                },
            ),
            "data.views": st.fixed_dictionaries(
                {}, optional={"turn": st.floats(0, 1), "max_angle": st.integers(0, 180)}
            ),
            "model": st.fixed_dictionaries(
                {"name": st.just("package:factory"), "options": st.dictionaries(TEXT, PLAIN, max_size=3)}
            ).map(lambda values: ModelConfig(**values)),
            "track": st.lists(st.sampled_from(["csv", "tensorboard"])).map(tuple),
        },
    )
)
def test_a_training_configuration_round_trips(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]
) -> None:
    config = override(TrainConfig(), changes)
    path = tmp_path_factory.mktemp("config") / "file.yaml"
    save(config, path)
    assert load(TrainConfig, path) == config
    for name, value in changes.items():
        assert operator.attrgetter(name)(config) == value


def test_the_defaults_are_the_papers_recipe() -> None:
    config = TrainConfig()
    assert (config.epochs, config.seed, config.data.batch_size, config.data.image_size) == (150, 1234, 24, (224, 224))
    optim = config.optim
    assert (optim.optimizer, optim.lr, optim.momentum, optim.weight_decay) == ("sgd", 0.01, 0.9, 1e-4)
    assert (optim.schedule, config.hardware.precision, config.validation.select) == ("constant", "auto", "last")


@pytest.mark.parametrize("text", ["1e-4", "'1e-4'", "1.0E-4", "0.0001", "+1e-4"])
def test_numbers_are_read_however_they_are_written(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file.yaml"
    model = "{name: 'a:b', options: {rate: 1e-2, label: '1e-2'}}"
    path.write_text(f"optim:\n  weight_decay: {text}\nmethod:\n  options: {{eta_beta: '1e-2'}}\nmodel: {model}\n")
    config = load(TrainConfig, path)
    assert config.optim.weight_decay == 1e-4
    assert config.method.options == {"eta_beta": 0.01}
    assert config.model.options == {"rate": 0.01, "label": "1e-2"}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"epochs": 1e2}, 100),
        ({"epochs": "7"}, 7),
        ({"optim": {"lr": 1}}, 1.0),
    ],
)
def test_values_take_the_type_of_their_field(values: dict[str, Any], expected: float) -> None:
    config = from_dict(TrainConfig, values)
    value = config.optim.lr if "optim" in values else config.epochs
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epochs": True}, r"epochs: expected a whole number, but got True \(bool\)"),
        ({"epochs": 1.5}, r"epochs: expected a whole number, but got 1.5 \(float\)"),
        ({"epochs": [1]}, r"epochs: expected a whole number, but got \[1\] \(list\)"),
        ({"epochs": 0}, r"epochs: expected a whole number ≥ 1, but got 0"),
        ({"epochs": None}, r"epochs: expected a whole number, but got None"),
        ({"optim": {"lr": "fast"}}, r"optim\.lr: expected a number, but got 'fast' \(str\)"),
        ({"optim": {"lr": float("nan")}}, r"optim\.lr: expected a number, but got nan"),
        ({"optim": {"lr": float("inf")}}, r"optim\.lr: expected a number, but got inf"),
        ({"optim": {"lr": 0}}, r"optim\.lr: expected a number > 0, but got 0\.0"),
        ({"optim": {"momentum": 1}}, r"optim\.momentum: expected a number ≥ 0 and < 1, but got 1\.0"),
        ({"optim": {"betas": [0.9]}}, r"optim\.betas: expected a list of 2, each a number, but got \[0\.9\]"),
        ({"optim": {"betas": [0.9, 1]}}, r"optim\.betas: expected a list of 2, each a number ≥ 0 and < 1"),
        ({"optim": {"optimizer": "SGD"}}, r"optim\.optimizer: expected one of sgd, adamw, but got 'SGD'"),
        ({"hardware": {"compile": 1}}, r"hardware\.compile: expected true or false, but got 1 \(int\)"),
        ({"data": {"split": 3}}, r"data\.split: expected text, but got 3 \(int\)\. Put it in quotes"),
        ({"data": {"store": 3}}, r"data\.store: expected a path or null, but got 3"),
        ({"data": {"store": "a\0b"}}, r"data\.store: expected a path or null"),
        ({"data": {"store": ""}}, r"data\.store: expected a path or null"),
        ({"data": {"image_size": [224]}}, r"data\.image_size: expected a whole number for both, or a list of 2, each"),
        ({"data": {"image_size": True}}, r"data\.image_size: expected a whole number for both"),
        ({"data": {"image_size": 0}}, r"data\.image_size: expected .* ≥ 1"),
        ({"optim": {"betas": 0.9}}, r"optim\.betas: expected a list of 2"),
        ({"data": []}, r"data: expected settings"),
        ({"method": {"options": {1: 2}}}, r"method\.options: expected options"),
        ({"model": {"options": {"a": object()}}}, r"model\.options: expected options"),
        ({"model": {"options": {"a": [float("nan")]}}}, r"model\.options: expected options"),
        ({"track": "csv"}, r"track: expected a list, each one of csv"),
        ({"track": ["paper"]}, r"track: expected a list, each one of csv"),
    ],
)
def test_a_wrong_value_is_named_with_its_path_type_and_value(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_dict(TrainConfig, values)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"validation.select": "best"}, "validation.select: best needs a validation"),
        ({"validation.select": "best", "validation.every": 151}, "validation.select"),
        ({"optim.warmup_epochs": 150}, "optim.warmup_epochs: expected fewer than the 150 epochs"),
        ({"hardware.accelerator": "cpu", "hardware.precision": "fp16"}, "hardware.precision: fp16 needs a GPU"),
        ({"data.batch_size": 2, "hardware.devices": 3}, "data.batch_size: expected a sample for each of 3 devices"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        override(TrainConfig(), changes)


def test_all_problems_of_a_file_come_in_one_message_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("epoch: 3\noptim:\n  lr: fast\n  momentun: 0.9\nmethod:\n  eta_beta: 8\nseed: -1\n")
    with pytest.raises(ConfigError) as caught:
        load(TrainConfig, path)
    message = str(caught.value)
    assert f"TrainConfig in {path}, but got these 5 problems" in message
    assert "\n  epoch: unknown key. Near names: 'epochs'" in message
    assert "\n  optim.momentun: unknown key. Near names: 'momentum'" in message
    assert "\n  optim.lr: expected a number, but got 'fast'" in message
    assert "\n  method.eta_beta: unknown key." in message
    assert "goes into method.options" in message
    assert "\n  seed: expected a whole number ≥ 0, but got -1" in message


def test_a_value_keeps_its_own_type_where_the_field_has_it() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Choice(Config):
        number: int | float = 0
        text: str | int = ""
        level: Literal[0, 1, "all"] = 0

    for number in (1, 1.0):
        assert type(Choice(number=number).number) is type(number)
    assert Choice(text="7").text == "7"
    assert Choice(text=7).text == 7
    assert Choice(level=1).level == 1
    with pytest.raises(ConfigError, match="level: expected one of 0, 1, all, but got True"):
        Choice(level=True)


def test_a_field_without_a_default_must_be_given() -> None:
    with pytest.raises(ConfigError, match=r"needed: is missing\. Give a whole number"):
        from_dict(Outer, {})


def test_one_number_is_both_sides_of_a_square() -> None:
    for size in (32, "32", [32, 32]):
        assert from_dict(TrainConfig, {"data": {"image_size": size}}).data.image_size == (32, 32)
    assert override(TrainConfig(), assignments(["data.image_size=48"])).data.image_size == (48, 48)


def test_conflicts_of_a_nested_object_are_named_by_their_full_path() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Top(Config):
        outer: Outer = section(Outer, "…")

    # `section` has no default here, as Outer needs a value.
    with pytest.raises(ConfigError, match=r"outer\.mode: slow and flag"):
        from_dict(Top, {"outer": {"needed": 1, "mode": "slow", "flag": True}})


def test_an_object_made_in_python_is_checked_and_converted_too() -> None:
    assert OptimConfig(lr="1e-3").lr == 1e-3  # type: ignore[arg-type]
    assert DataConfig(store="store").store == Path("store")  # type: ignore[arg-type]
    assert TrainConfig(optim={"lr": 1}).optim == OptimConfig(lr=1.0)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="lr: expected a number > 0"):
        OptimConfig(lr=-1)
    with pytest.raises(ConfigError, match=r"optim\.lr: expected a number > 0"):
        TrainConfig(optim={"lr": -1})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="slow and flag"):
        Outer(needed=1, mode="slow", flag=True)


def test_objects_are_frozen_picklable_and_share_nothing() -> None:
    options = {"decoder_channels": [1.0]}
    config = TrainConfig(model=ModelConfig(options=options))
    options["decoder_channels"].append(2.0)
    assert config.model.options == {"decoder_channels": [1.0]}
    assert TrainConfig().method.options is not TrainConfig().method.options
    assert pickle.loads(pickle.dumps(config)) == config
    with pytest.raises(FrozenInstanceError):
        config.epochs = 3  # type: ignore[misc]


# Each line holds the one before nine times: a gigabyte in nine lines.
BOMB = b"a0: &a0 1\n" + b"".join(
    f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 9)}]\n".encode() for number in range(1, 10)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"epochs: 1\nepochs: 2\n", r"the key 'epochs' stands twice \(line 2, column 1\)"),
        (b"epochs: [1", r"Expected YAML in .*line 1"),
        (b"epochs: \xff\xfe", "Expected YAML in"),
        (b"seed: !!python/object/apply:os.system ['touch executed']", "could not determine a constructor"),
        (b"- 1\n- 2\n", "expected settings"),
        (b"\xc4\x00\x01binary", r"it is not text \(at character 1\)"),
        (b"? [1, 2]\n: 3\n", r"a key is a list or a mapping \(line 1"),
        (b"epochs: " + b"x" * 3000, r"expected a whole number, but got 'x{199}… \(str\)"),
        (b"just text", "expected settings"),
        (b"[" * 5000, "Expected YAML in"),
        (b"a: &a [*a]\n", "aliases make more than"),
        (b"a: &a {b: [*a]}\n", "aliases make more than"),
        (BOMB, "aliases make more than"),
        (b"{[1]: 2}", "a key is a list or a mapping"),
        (b"a: !!timestamp b", "Expected YAML in"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "file.yaml"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load(TrainConfig, path)
    assert str(path) in str(caught.value)
    assert list(tmp_path.iterdir()) == [path]


def test_an_empty_file_is_all_defaults_and_a_missing_one_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text("# nothing but words\n")
    assert load(TrainConfig, path) == TrainConfig()
    with pytest.raises(MissingFileError, match=r"absent\.yaml does not exist"):
        load(TrainConfig, tmp_path / "absent.yaml")
    with pytest.raises(MissingFileError):
        load(TrainConfig, tmp_path)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("optim.learning_rate", "unknown key. Near names: 'lr'."),
        ("optim.learning-rate", "unknown key. Near names: 'lr'."),
        ("optim.wd", "unknown key. Near names: 'weight_decay'."),
        ("optim.momentun", "unknown key. Near names: 'momentum'."),
        ("data.batch", "unknown key. Near names: 'batch_size'."),
        ("data.size", "unknown key. Near names: 'image_size'."),
        ("data.views.maxangle", "unknown key. Near names: 'max_angle'."),
        ("lr", "unknown key. Near names: 'optim.lr'."),
        ("learning_rate", "unknown key. Near names: 'optim.lr'."),
        ("batch_size", "unknown key. Near names: 'data.batch_size'."),
        ("optim.batch_size", "unknown key. Near names: 'data.batch_size'."),
        ("optim.zzz", "unknown key. Expected one of optimizer, lr, momentum, betas, weight_decay, schedule, power,"),
        ("method.eta_beta", "unknown key. An option to be passed on goes into method.options."),
    ],
)
def test_an_unknown_key_leads_to_the_setting_that_is_meant(path: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        override(TrainConfig(), {path: 1})
    assert f"  {path}: {text}" in str(caught.value)


def test_every_alias_leads_to_one_setting_and_is_none() -> None:
    known = list(leaves(TrainConfig))
    aliases = [alias for leaf in known for alias in leaf.aliases]
    assert len(aliases) == len(set(aliases)) > 30
    assert not set(aliases) & {leaf.path.rpartition(".")[2] for leaf in known}


def test_a_value_in_the_place_of_settings_goes_to_their_name() -> None:
    with pytest.raises(ConfigError, match=r"model: expected settings, but got 'unet'. Give it as model\.name\."):
        override(TrainConfig(), {"model": "unet"})
    with pytest.raises(ConfigError, match=r"optim: expected settings, but got 3\. Write each as key: value"):
        override(TrainConfig(), {"optim": 3})
    assert from_dict(TrainConfig, {"optim": None, "epochs": 3}) == TrainConfig(epochs=3)  # all of it is commented out


def test_overrides_change_what_they_name_and_nothing_else() -> None:
    config = TrainConfig(method=MethodConfig(options={"eta_beta": 1.0, "rho": "mse"}))
    changed = override(
        config, {"method.options.eta_beta": 8, "optim": {"lr": 0.1}, "method.options": {"dice": "batch"}}
    )
    assert changed.method.options == {"eta_beta": 8, "rho": "mse", "dice": "batch"}
    assert changed.optim == OptimConfig(lr=0.1)
    assert config.method.options == {"eta_beta": 1.0, "rho": "mse"}
    assert override(config, {}) == config
    with pytest.raises(ConfigError, match=r"optim\.lrr: unknown key\. Near names: 'lr'"):
        override(config, {"optim.lrr": 1})
    with pytest.raises(ConfigError, match="'epochs' has no parts"):
        override(config, {"epochs.x": 1})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data.views.trun": 0.5}, r"data\.views\.trun: unknown key\. Near names: 'turn'"),
        ({"data.views.turn": 1.5}, r"data\.views\.turn: expected a number ≥ 0 and ≤ 1, but got 1\.5"),
        ({"data.views.max_angle": "wide"}, r"data\.views\.max_angle: expected a whole number, but got 'wide'"),
        ({"data.views": {"mode": "released", "gamma": 1}}, r"data\.views\.mode: expected affine with gamma"),
        ({"method.options.eta_betta": 1}, r"method\.options\.eta_betta: unknown key\. Near names: 'eta_beta'"),
        ({"method.options.eta_beta": "big"}, r"method\.options\.eta_beta: expected a number, but got 'big'"),
        (
            {"method.options.rho": "rmse"},
            r"method\.options\.rho: expected one of rms, mse, euclidean, cosine, local-cosine",
        ),
        ({"method.options.trim_ratio": 1}, r"method\.options\.trim_ratio: expected a number ≥ 0 and < 1 or null"),
        ({"model.options.encoder_dept": 3}, r"model\.options\.encoder_dept: unknown option of unet\. Near names: 'enc"),
        ({"model.options.faithful": True}, r"model\.options\.faithful: unknown option of unet"),
        ({"model.name": "smp:fpn", "model.options.wings": 2}, r"model\.options\.wings: unknown option of smp:fpn"),
        ({"model.name": "transunet", "model.options.widht": 2}, r"unknown option of transunet\. Near names: 'width'"),
    ],
)
def test_a_wrong_option_is_refused_when_the_configuration_is_read(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        override(TrainConfig(), changes)
    path = tmp_path / "file.yaml"
    nested: dict[str, Any] = {}
    for name, value in changes.items():
        *parents, last = name.split(".")
        functools.reduce(lambda inner, parent: inner.setdefault(parent, {}), parents, nested)[last] = value
    path.write_text(yaml.safe_dump(nested))
    with pytest.raises(ConfigError, match=message):
        load(TrainConfig, path)


@pytest.mark.parametrize(
    "changes",
    [
        {"model.options.wings": None},  # null takes an option away
        {"model.name": "monai:UNet", "model.options.wings": 2},  # known to the library alone
        {"model.name": "package:factory", "model.options.wings": 2},
        {"model.name": "smp:Unet/tu-resnet18", "model.options.wings": 2},
        {"method.name": "of-another-package", "method.options.wings": 2},
    ],
)
def test_options_that_only_others_know_are_left_to_them(changes: dict[str, Any]) -> None:
    override(TrainConfig(), changes)


def test_reading_without_the_libraries_imports_none_of_them(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(
        "model: {options: {wings: 2}}\nmethod: {options: {eta_beta: 8}}\ndata: {views: {turn: 0}}\n", encoding="utf-8"
    )
    code = f"""
import sys
from adawac.config import TrainConfig, load
print(load(TrainConfig, {str(path)!r}, libraries=False).model.options, "torch" in sys.modules)"""
    env = os.environ | {"PYTHONPATH": str(REPOSITORY / "src")}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert out.stdout == "{'wings': 2} False\n"


def test_built_in_methods_are_those_that_are_registered() -> None:
    assert set(BUILT_IN_METHODS) == set(_BUILT_IN)


def test_built_in_models_are_those_that_can_be_built() -> None:
    assert set(MODELS._entries) == BUILT_IN_MODELS


def test_views_are_built_from_their_options() -> None:
    config = override(TrainConfig(), {"data.views": {"turn": "0.25", "interpolation": "cubic"}})
    assert config.data.views == {"turn": 0.25, "interpolation": "cubic"}
    assert ViewConfig(**config.data.views) == ViewConfig(turn=0.25, interpolation="cubic")


def test_an_option_that_is_null_has_its_default() -> None:
    config = override(TrainConfig(), {"method.options": {"rho": "cosine", "scale": None}, "data.views.turn": None})
    assert (config.method.options, config.data.views) == ({"rho": "cosine"}, {})
    assert override(config, {"method.options.rho": None}).method.options == {}


def test_assignments_are_read_as_yaml() -> None:
    texts = ["optim.lr=1e-3", "data.image_size=[96, 128]", "model.pretrained=null", "a=b=c", "flag = true"]
    assert assignments(texts) == {
        "optim.lr": 1e-3,
        "data.image_size": [96, 128],
        "model.pretrained": None,
        "a": "b=c",
        "flag": True,
    }
    for text in ("optim.lr", "=3", "a=[1"):
        with pytest.raises(ConfigError, match=r"Expected path=value, but got"):
            assignments([text])


def test_a_path_below_home_names_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/alice")
    config = DataConfig(store=Path("/home/alice/data/store"))
    assert "alice" not in dumps(config)
    save(config, tmp_path / "file.yaml")
    assert load(DataConfig, tmp_path / "file.yaml") == config
    assert DataConfig(store=Path("~/data/store")) == config
    assert "/home/alicia/store" in dumps(DataConfig(store=Path("/home/alicia/store")))


def test_every_setting_explains_itself() -> None:
    found = list(leaves(TrainConfig))
    assert len({leaf.path for leaf in found}) == len(found) > 35
    for leaf in found:
        assert leaf.help.endswith("."), leaf
        assert f"# {leaf.help}" in dumps(TrainConfig())
    assert next(leaf for leaf in found if leaf.path == "optim.clip_norm").kind == "a number > 0 or null"
    assert all("help" in field.metadata for field in fields(TrainConfig))


def test_the_manual_lists_every_setting_with_its_default() -> None:
    manual = (REPOSITORY / "docs" / "how-to" / "configure.md").read_text(encoding="utf-8")
    options = (*leaves(ViewConfig, "data.views."), *leaves(ObjectiveOptions, "method.options."))
    for leaf in (*leaves(TrainConfig), *options):
        default = lines("x", leaf.default)[0].removeprefix("x: ")
        assert f"| `{leaf.path}` | {leaf.kind} | `{default}` | {leaf.help} |" in manual


def test_saving_keeps_the_old_file_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.yaml"
    save(TrainConfig(epochs=3), path)

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        save(TrainConfig(epochs=4), path)
    assert load(TrainConfig, path).epochs == 3


def test_importing_config_is_light() -> None:
    code = "import sys, adawac.config; print([m for m in ('torch', 'numpy', 'rich', 'cyclopts') if m in sys.modules])"
    source = str(REPOSITORY / "src")
    env = os.environ | {"PYTHONPATH": source}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert out.stdout == "[]\n"


def test_settings_that_do_not_decide_a_result_are_settings():
    plain = to_dict(TrainConfig())
    for path in (*NOT_DECISIVE, *ROUNDING):
        section, _, name = path.rpartition(".")
        assert name in (plain[section] if section else plain)


def test_what_decides_a_result_is_everything_else():
    first = to_dict(TrainConfig())
    free = {"data.workers": 7, "hardware.capture": "never", "track": ["csv"], "hardware.fused": False}
    second = to_dict(override(TrainConfig(), free))
    assert decisive(first) != decisive(second)  # fused kernels round differently
    assert decisive(first, *ROUNDING) == decisive(second, *ROUNDING)
    assert decisive(first)["hardware"].keys() == {"precision", "fused", "deterministic", "sync_batchnorm"}
    assert decisive({"settings": {"track": 1}}) == {"settings": {"track": 1}}  # another loop's own
