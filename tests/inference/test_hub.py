"""Networks on the Hub: folders that are uploaded and read again, over HTTP, with `huggingface_hub` itself."""

import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import replace

import pytest
import yaml

from adawac.cli import run as command
from adawac.errors import ConfigError, MissingDependencyError, MissingFileError, RunError
from adawac.inference.model_export import export_model
from adawac.inference.model_readme import SharedNetwork, write_hub_readme
from adawac.inference.prediction import predict
from adawac.inference.trained import load_trained, local_folder, source_name
from adawac.runs import example_run, write_scores
from adawac.runs.results import Score
from tests.inference.hub_server import serving
from tests.inference.made_runs import make_run, noise, save
from tests.inference.test_monai_bundle import NETWORK, SMALL

hub = pytest.importorskip("huggingface_hub")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with scores of two patients, on whose names nothing may follow."""
    folder = make_run(tmp_path_factory.mktemp("runs") / "run-of-anna", NETWORK, (32, 32), options=SMALL)
    scores = [
        Score(
            patient=patient, case=f"{patient}-1", label=k, class_name=name, metric=metric, value=value, split="test",
            unit="mm" if metric == "hd95" else "",
        )
        for patient, shift in (("DOE^JANE", 0.0), ("ROE^RICHARD", 0.1))
        for k, name in ((1, "liver"), (2, "left kidney"))
        for metric, value in (("dice", 0.7 + shift + 0.05 * k), ("hd95", 4.0 + k))
    ]  # fmt: skip
    write_scores(folder, "test-strict-last", scores)
    write_scores(folder, "test-strict-best", [replace(score, checkpoint="best", value=0.5) for score in scores])
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory, run):
    return export_model(run, tmp_path_factory.mktemp("shared") / "net", format="hub", license="CC-BY-4.0").path


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A Hub on this machine, in place of the real one, and a cache of one's own."""
    from huggingface_hub import constants, file_download

    with serving() as hub_server:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.removeprefix(constants.ENDPOINT)
        monkeypatch.setattr(constants, "ENDPOINT", hub_server.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub_server.url + template)
        # Versions before 1.0 keep a name of their own for it.
        monkeypatch.setattr(file_download, "HUGGINGFACE_CO_URL_TEMPLATE", hub_server.url + template, raising=False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        yield hub_server


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# -- the folder -------------------------------------------------------------------------------------------------------


def test_the_folder_holds_data_alone(folder):
    assert set(contents(folder)) == {"README.md", "model.json", "weights.safetensors"}


def test_the_model_card_is_one_that_the_hub_reads(folder):
    card = hub.ModelCard.load(folder / "README.md")
    assert card.data.license == "cc-by-4.0"
    assert card.data.library_name == "adawac"
    assert card.data.pipeline_tag == "image-segmentation"
    assert {"medical", "method-adawac"} <= set(card.data.tags)
    values = {result.metric_name: result.metric_value for result in card.data.eval_results}
    assert values["DSC, liver, % (strict)"] == pytest.approx(80.0)
    assert values["DSC, mean, % (strict)"] == pytest.approx(82.5)
    assert values["HD95, left kidney, mm (strict)"] == pytest.approx(6.0)
    assert len(values) == 6  # those of the other checkpoint are not among them
    assert {result.dataset_split for result in card.data.eval_results} == {"test"}
    front = yaml.safe_load(card.content.split("---")[1])
    assert front["model-index"][0]["results"][0]["dataset"] == {"name": "small", "type": "small", "split": "test"}


def test_the_model_card_says_what_people_ask_for(folder):
    text = (folder / "README.md").read_text()
    for section in ("How to use it", "Intended use", "Limits", "Classes", "Training data", "Scores", "Training"):
        assert f"## {section}\n" in text
    assert "| liver | 80.00 ± 7.07 | 5.00 ± 0.00 |" in text
    assert "| 2 | 3 | left kidney |" in text
    assert "2 cases of 2 patients (test)" in text
    assert "not a medical device" in text
    assert f"Network: {NETWORK}; input 32 × 32 pixels." in text


def test_nobody_is_named(folder):
    for name, content in contents(folder).items():
        for secret in (b"DOE", b"ROE", b"anna", str(folder.parent.parent).encode()):
            assert secret not in content, name


def test_counts_come_from_the_table_of_samples(tmp_path, run):
    example = example_run(tmp_path / "example", cases=("p1", "p2"), slices=20)
    shared = SharedNetwork(trained=load_trained(run), run=example, license="mit")
    text = write_hub_readme(shared)
    sparse = int(example.samples.label_sparse.sum())
    assert f"Trained on 40 slices of 2 cases of 2 patients; {sparse} of them" in text
    assert "p1" not in text


def test_a_model_folder_is_shared_without_its_run(tmp_path, run):
    model = export_model(run, tmp_path / "model").path
    shared = export_model(model, tmp_path / "shared", format="hub", license="mit").path
    text = (shared / "README.md").read_text()
    assert "The training's settings are not noted." in text
    assert "model-index" not in text
    assert (shared / "model.json").read_bytes() == (model / "model.json").read_bytes()


def test_a_network_that_needs_code_is_not_shared(tmp_path):
    run = make_run(tmp_path / "run", "tests.networks.threshold_network:texture")
    with pytest.raises(ConfigError, match=r"holds no code, but .* would be imported and run"):
        export_model(run, tmp_path / "out", format="hub", license="mit")
    assert not (tmp_path / "out").exists()


# -- there and back ---------------------------------------------------------------------------------------------------


def test_upload_and_predict_in_processes_of_their_own(tmp_path, folder, run):
    """As a user does it: the Hub's own command, then ours, both led here by HF_ENDPOINT alone."""
    scan = save(tmp_path / "scan.nii.gz", noise())
    with serving() as server:
        environment = {**os.environ, "HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": "hf_t"}
        environment |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        upload = f"import huggingface_hub as hub; api = hub.HfApi(); api.create_repo('anna/net'); " \
            f"api.upload_folder(repo_id='anna/net', folder_path={str(folder)!r})"  # fmt: skip
        subprocess.run([sys.executable, "-c", upload], env=environment, check=True, capture_output=True)
        ((first, files),) = server.repositories["anna/net"][1:]
        assert {name: content for name, content in files.items() if name != ".gitattributes"} == contents(folder)
        server.commit("anna/net", {"model.json": b"{}"})
        words = [sys.executable, "-m", "adawac", "predict", f"hf://anna/net@{first}", str(scan), "--out"]
        subprocess.run([*words, str(tmp_path / "out")], env=environment, check=True, capture_output=True)
    (wanted,) = predict(run, scan, tmp_path / "wanted", device="cpu")
    assert (tmp_path / "out" / "scan.nii.gz").read_bytes() == wanted.labels.read_bytes()
    facts = json.loads((tmp_path / "out" / "scan.json").read_text())
    assert facts["networks"][0]["from"] == f"hf://anna/net@{first}"


def test_only_what_is_needed_is_fetched(server, folder):
    commit = server.commit("anna/net", contents(folder))
    trained = load_trained("hf://anna/net")
    for key, tensor in load_trained(folder).network.state_dict().items():
        assert tensor.equal(trained.network.state_dict()[key]), key
    assert {path.name for path in trained.source.iterdir()} == {"model.json", "weights.safetensors"}
    assert source_name(trained.source) == f"hf://anna/net@{commit}"
    assert not any("README" in request for request in server.requests)


def test_what_was_fetched_is_there_without_a_connection(server, folder, monkeypatch, caplog):
    from huggingface_hub import constants

    first = server.commit("anna/net", contents(folder))
    for address in ("hf://anna/net", f"hf://anna/net@{first}"):
        assert local_folder(address).name == first
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", nobody)
    assert local_folder("hf://anna/net").name == first
    assert "hf://anna/net is taken from the cache" in caplog.text
    with pytest.raises(RunError, match="Expected to reach the Hub for hf://anna/other, but got"):
        local_folder("hf://anna/other")


def test_a_path_made_of_an_address_is_one(server, folder, tmp_path, monkeypatch):
    """The command line makes paths of its arguments."""
    server.commit("anna/net", contents(folder))
    scan = save(tmp_path / "scan.nii.gz", noise())
    monkeypatch.chdir(tmp_path)
    assert command(["predict", "hf://anna/net", str(scan), "--out", "labels", "--device", "cpu"]) == 0
    assert (tmp_path / "labels" / "scan.nii.gz").is_file()
    assert command(["export", "hf://anna/net", "--out", "model"]) == 0
    assert (tmp_path / "model" / "model.json").read_bytes() == (folder / "model.json").read_bytes()


# -- what is wrong ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["net.py", "weights/pytorch_model.bin", "a.pkl", "model.pt", "x.ipynb", "run.sh", "lib.so", "data.NPZ"]
)
def test_code_and_pickles_are_refused_before_anything_is_fetched(server, folder, name):
    server.commit("anna/net", {**contents(folder), name: b"import os"})
    with pytest.raises(RunError, match=f"may hold code or pickled objects: {name}. Nothing was fetched"):
        load_trained("hf://anna/net")
    assert server.requests == ["GET /api/models/anna/net"]


def test_pictures_and_licences_are_no_code(server, folder):
    others = ("LICENSE", ".gitattributes", "beta.PNG", "CITATION.cff", "docs/notes.md")
    server.commit("anna/net", {**contents(folder), **dict.fromkeys(others, b"")})
    assert load_trained("hf://anna/net").class_names == ("background", "liver", "left kidney")


def test_nothing_of_that_name(server, folder):
    server.commit("anna/net", contents(folder))
    with pytest.raises(MissingFileError, match="Expected hf://anna/other on the Hub, but there is no such repository"):
        load_trained("hf://anna/other")
    with pytest.raises(MissingFileError, match="Expected hf://anna/net@v2 on the Hub, but there is no such revision"):
        load_trained("hf://anna/net@v2")


def test_a_repository_of_something_else(server):
    server.commit("anna/words", {"config.json": b"{}", "model.safetensors": b""})
    with pytest.raises(MissingFileError, match=r"a model folder in hf://anna/words, but it has no model\.json"):
        load_trained("hf://anna/words")


def test_weights_that_were_changed_on_the_way(server, folder):
    files = contents(folder)
    files["weights.safetensors"] = files["weights.safetensors"][:-1] + b"\1"
    server.commit("anna/net", files)
    with pytest.raises(RunError, match=r"weights\.safetensors as it was exported, but it was changed"):
        load_trained("hf://anna/net")


def test_a_repository_whose_owners_ask_first(server, folder):
    server.commit("anna/net", contents(folder))
    server.gated.add("anna/net")
    with pytest.raises(RunError, match="Expected access to hf://anna/net, but its owners ask for consent"):
        load_trained("hf://anna/net")


@pytest.mark.parametrize("address", ["hf://net", "hf://anna/net/x", "hf://anna/net@", "hf:///net"])
def test_an_address_of_another_form(address):
    with pytest.raises(ConfigError, match="Expected hf://owner/name or hf://owner/name@revision, but got"):
        load_trained(address)


def test_names_that_the_hub_does_not_know(server):
    with pytest.raises(ConfigError, match=r"Expected hf://owner/name\[@revision\], but got hf://an na/net"):
        load_trained("hf://an na/net")


def test_a_hub_in_trouble(server, folder, monkeypatch):
    server.commit("anna/net", contents(folder))
    monkeypatch.setattr(server, "find", None)  # the connection breaks in the middle of an answer
    with pytest.raises(RunError, match="Expected to reach the Hub for hf://anna/net, but got"):
        load_trained("hf://anna/net")


def test_offline_mode(server, monkeypatch):
    from huggingface_hub import constants, utils

    forget = getattr(utils, "reset_sessions", lambda: None)  # before 1.0 a session remembers its mode
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    forget()
    with pytest.raises(RunError, match="Expected to reach the Hub for hf://anna/net, but got"):
        load_trained("hf://anna/net")
    forget()
    assert server.requests == []


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingDependencyError, match=r"Run: pip install 'adawac\[hub\]'"):
        load_trained("hf://anna/net")


def test_the_command_says_what_to_do_next(tmp_path, run, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command(["export", str(run), "--hub", "net", "--license", "mit"]) == 0
    assert "net: read and complete net/README.md, then upload it: hf upload OWNER/NAME net" in capsys.readouterr().out
    shutil.rmtree("net")
    assert command(["export", str(run), "--hub", "net"]) == 2
    assert "no licence was chosen" in capsys.readouterr().err
