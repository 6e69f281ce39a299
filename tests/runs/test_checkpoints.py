import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from adawac.errors import AdawacError, MissingFileError, RunError
from adawac.runs import load_checkpoint, read_state, save_checkpoint

STATE = {"epoch": 3, "lr": 0.1, "ids": ['a/"b"\n/\u202e<script>', "\ud800"], "nested": {"x": [None, True]}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints" / "last.safetensors"


def test_arrays_and_state_come_back(path: Path) -> None:
    arrays = {
        "weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "transposed": np.arange(6.0).reshape(2, 3).T,
        "count": np.array(7),
        "none": np.zeros((0, 3)),
        "rng": np.arange(5, dtype=np.uint8),
    }
    save_checkpoint(path, arrays, STATE)
    loaded = load_checkpoint(path)
    assert loaded.state == STATE == read_state(path)
    assert loaded.tensors.keys() == arrays.keys()
    for name, array in arrays.items():
        assert loaded.tensors[name].dtype == array.dtype
        np.testing.assert_array_equal(loaded.tensors[name], array)


def test_tensors_of_every_kind_come_back(path: Path) -> None:
    shared = torch.arange(8.0)
    tensors = {
        "bf16": torch.tensor([1.0, 1e30], dtype=torch.bfloat16),
        "view": shared[2:6],
        "whole": shared,
        "gradient": torch.ones(2, requires_grad=True),
        "scalar": torch.tensor(3),
        "array": np.ones(2),
        "channels last": torch.arange(24.0).reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
    }
    save_checkpoint(path, tensors, {})
    loaded = load_checkpoint(path, "torch").tensors
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(loaded[name], torch.as_tensor(tensor))
        assert loaded[name].dtype == torch.as_tensor(tensor).dtype


def test_numpy_says_what_to_do_about_bfloat16(path: Path) -> None:
    save_checkpoint(path, {"a": torch.ones(2, dtype=torch.bfloat16)}, {})
    if "ml_dtypes" in sys.modules:  # which teaches NumPy what that is; other tests may have imported it
        assert load_checkpoint(path).tensors["a"].tolist() == [1, 1]
        return
    with pytest.raises(RunError, match="Load with torch"):
        load_checkpoint(path)


def test_the_same_content_gives_the_same_bytes(path: Path) -> None:
    arrays = {name: np.full(3, ord(name), dtype) for name, dtype in (("b", "f4"), ("a", "f8"), ("c", "i8"))}
    save_checkpoint(path, arrays, STATE)
    first = path.read_bytes()
    save_checkpoint(path, dict(reversed(arrays.items())), STATE)
    assert path.read_bytes() == first


def test_any_altered_byte_is_found(path: Path) -> None:
    save_checkpoint(path, {"w": np.arange(4, dtype=np.float32)}, {"epoch": 1})
    intact = path.read_bytes()
    for place in range(len(intact)):
        damaged = bytearray(intact)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(RunError, match=r"intact checkpoint.*last\.safetensors is damaged"):
            load_checkpoint(path)
    path.write_bytes(intact)
    assert load_checkpoint(path).state == {"epoch": 1}


def test_any_missing_end_is_found(path: Path) -> None:
    save_checkpoint(path, {"w": np.arange(4, dtype=np.float32)}, {"epoch": 1})
    intact = path.read_bytes()
    for length in range(len(intact)):
        path.write_bytes(intact[:length])
        with pytest.raises(RunError, match="is damaged"):
            load_checkpoint(path)


def test_the_message_names_what_could_be_used_instead(path: Path) -> None:
    save_checkpoint(path, {}, {})
    save_checkpoint(path.with_name("best.safetensors"), {}, {})
    path.write_bytes(b"")
    with pytest.raises(RunError, match=r"Take another one \(best\)"):
        load_checkpoint(path)
    with pytest.raises(RunError, match="is damaged"):
        read_state(path)
    with pytest.raises(MissingFileError, match="There are: best, last"):
        load_checkpoint(path.with_name("absent.safetensors"))


class Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("executed",)


def test_nothing_is_executed(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path.parent.mkdir()
    path.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(AdawacError):
        load_checkpoint(path)
    torch.save({"a": Trap()}, path)
    with pytest.raises(AdawacError):
        load_checkpoint(path, "torch")
    assert not (tmp_path / "executed").exists()


def test_a_foreign_safetensors_file_is_refused(path: Path) -> None:
    path.parent.mkdir()
    save_file({"a": np.ones(2)}, path)
    with pytest.raises(RunError, match="it carries no SHA-256"):
        load_checkpoint(path)
    with pytest.raises(RunError, match="its header cannot be read"):
        read_state(path)


def test_others_may_read_it_as_the_umask_says(path: Path, tmp_path: Path) -> None:
    save_checkpoint(path, {"a": np.ones(2)}, {})
    plain = tmp_path / "plain"
    plain.touch()
    assert path.stat().st_mode == plain.stat().st_mode


def test_what_json_cannot_hold_is_refused_and_the_old_file_stays(path: Path) -> None:
    save_checkpoint(path, {"a": np.ones(2)}, {"epoch": 1})
    with pytest.raises(TypeError):
        save_checkpoint(path, {"a": np.ones(2)}, {"epoch": object()})
    assert load_checkpoint(path).state == {"epoch": 1}
    assert list(path.parent.iterdir()) == [path]
