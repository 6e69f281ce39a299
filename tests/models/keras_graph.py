"""A model of Keras for TensorFlow.js: run in NumPy as its file says, and a ResNet-50 of random numbers to write."""

import json
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

STAGES = {2: 3, 3: 4, 4: 6, 5: 3}  # blocks
MEANS = (103.939, 116.779, 123.68)  # of ImageNet's blue, green, red


def caffe_input(image):
    """Return what Keras' ResNets take of RGB images (N, H, W, 3) in [0, 1]."""
    return 255 * image[..., ::-1] - np.array(MEANS)


class KerasGraph:
    """Layer by layer in float64, from the file alone.

    Args:
        path: `model.json`.
        padding: What stands around the input image, a value for each channel; zero is what Keras puts there.
    """

    def __init__(self, path, padding=(0, 0, 0)):
        model = json.loads(Path(path).read_text())
        self.layers = model["modelTopology"]["model_config"]["config"]["layers"]
        self.weights, self.padding = {}, padding
        [group] = model["weightsManifest"]
        content = b"".join((Path(path).parent / name).read_bytes() for name in group["paths"])
        start = 0
        for weight in group["weights"]:
            size = 4 * int(np.prod(weight["shape"]))
            numbers = np.frombuffer(content[start : start + size], np.float32)
            self.weights[weight["name"]] = numbers.reshape(weight["shape"]).astype(np.float64)
            start += size

    def __call__(self, x, until=None):
        """Return the outputs of all layers, or up to one, by name."""
        outputs = {}
        for layer in self.layers:
            config, name = layer["config"], layer["config"]["name"]
            inputs = [outputs[source[0]] for node in layer["inbound_nodes"] for source in node] or [x]
            outputs[name] = getattr(self, layer["class_name"])(config, name, *inputs)
            if name == until:
                break
        return outputs

    def InputLayer(self, config, name, x):
        return x

    def ZeroPadding2D(self, config, name, x):
        if x.shape[-1] != 3:
            return np.pad(x, ((0, 0), *config["padding"], (0, 0)))
        pairs = ((0, 0), *config["padding"])
        return np.stack([np.pad(x[..., c], pairs, constant_values=self.padding[c]) for c in range(3)], -1)

    def Conv2D(self, config, name, x):
        kernel, bias = self.weights[f"{name}/kernel"], self.weights[f"{name}/bias"]
        if config["padding"] == "same":
            assert config["strides"] == [1, 1], "all others are valid"
            half = kernel.shape[0] // 2
            x = np.pad(x, ((0, 0), (half, half), (half, half), (0, 0)))
        down, right = config["strides"]
        windows = sliding_window_view(x, kernel.shape[:2], (1, 2))[:, ::down, ::right]  # N, H, W, C, KH, KW
        return np.tensordot(windows, kernel.transpose(2, 0, 1, 3), 3) + bias

    def BatchNormalization(self, config, name, x):
        gamma, beta, mean, variance = (
            self.weights[f"{name}/{part}"] for part in ("gamma", "beta", "moving_mean", "moving_variance")
        )
        return gamma * (x - mean) / np.sqrt(variance + config["epsilon"]) + beta

    def Activation(self, config, name, x):
        assert config["activation"] == "relu"
        return np.maximum(x, 0)

    def MaxPooling2D(self, config, name, x):
        down, right = config["strides"]
        return sliding_window_view(x, config["pool_size"], (1, 2))[:, ::down, ::right].max((-1, -2))

    def Add(self, config, name, *inputs):
        return sum(inputs)

    def GlobalAveragePooling2D(self, config, name, x):
        return x.mean((1, 2))

    def Dense(self, config, name, x):
        logits = x @ self.weights[f"{name}/kernel"] + self.weights[f"{name}/bias"]
        return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


def stage_outputs(graph):
    """Return the names of the layers whose output is a stage's: the stem's, and the last activation of each stage."""
    names = [layer["config"]["name"] for layer in graph.layers]
    adds = [number for number, layer in enumerate(graph.layers) if layer["class_name"] == "Add"]
    ends = np.cumsum(list(STAGES.values())) - 1
    stem = names[names.index("bn_conv1") + 1]
    return [stem, *(names[adds[end] + 1] for end in ends)]


def write_resnet50(folder, seed=0, epsilon=0.001, shards=3):
    """Write a ResNet-50 of random numbers as Keras and its converter do; return `model.json`."""
    random = np.random.default_rng(seed)
    layers, weights = [], {}

    def layer(kind, name, *sources, **config):
        nodes = [[[source, 0, 0, {}] for source in sources]] if sources else []
        config = {"name": name, "trainable": True, **config}
        layers.append({"name": name, "class_name": kind, "config": config, "inbound_nodes": nodes})
        return name

    def conv(source, name, size, before, after, stride=1, padding="valid"):
        scale = np.sqrt(2 / (size * size * before)) / (60 if name == "conv1" else 1)
        weights[f"{name}/kernel"] = scale * random.standard_normal((size, size, before, after), np.float32)
        weights[f"{name}/bias"] = random.normal(0, 0.5, after)
        norm = name.replace("res", "bn") if name != "conv1" else "bn_conv1"
        weights[f"{norm}/gamma"], weights[f"{norm}/beta"] = (
            random.uniform(0.3, 0.7, after),
            random.normal(0, 0.2, after),
        )
        weights[f"{norm}/moving_mean"] = random.normal(0, 0.3, after)
        weights[f"{norm}/moving_variance"] = random.uniform(1e-4, 2, after)  # ε counts
        sizes = {"kernel_size": [size, size], "strides": [stride, stride], "padding": padding, "use_bias": True}
        layer("Conv2D", name, source, filters=after, **sizes)
        return layer("BatchNormalization", norm, name, axis=[3], momentum=0.99, epsilon=epsilon)

    def relu(source):
        return layer("Activation", f"activation_{len(layers)}", source, activation="relu")

    layer("InputLayer", "input_1", batch_input_shape=[None, 224, 224, 3])
    padded = layer("ZeroPadding2D", "conv1_pad", "input_1", padding=[[3, 3], [3, 3]])
    x = relu(conv(padded, "conv1", 7, 3, 64, stride=2))
    x = layer("ZeroPadding2D", "pool1_pad", x, padding=[[1, 1], [1, 1]])
    x = layer("MaxPooling2D", "max_pooling2d", x, pool_size=[3, 3], strides=[2, 2], padding="valid")
    width, before = 64, 64
    for stage, blocks in STAGES.items():
        for block in range(blocks):
            name, stride = f"res{stage}{'abcdef'[block]}_branch", 2 if block == 0 and stage > 2 else 1
            y = relu(conv(x, f"{name}2a", 1, before, width, stride))
            y = relu(conv(y, f"{name}2b", 3, width, width, padding="same"))
            y = conv(y, f"{name}2c", 1, width, 4 * width)
            shortcut = x if block else conv(x, f"{name}1", 1, before, 4 * width, stride)
            x, before = relu(layer("Add", f"add_{len(layers)}", y, shortcut)), 4 * width
        width *= 2
    layer("Dense", "fc1000", layer("GlobalAveragePooling2D", "avg_pool", x), units=5, activation="softmax")
    weights["fc1000/kernel"], weights["fc1000/bias"] = random.normal(0, 0.1, (2048, 5)), random.normal(0, 1, 5)

    arrays = {name: np.asarray(array, "<f4") for name, array in sorted(weights.items())}
    content = b"".join(array.tobytes() for array in arrays.values())
    paths = [f"group1-shard{number + 1}of{shards}.bin" for number in range(shards)]
    share = (
        -(-len(content) // shards) | 1
    )  # a tensor may begin in one file and end in the next, within a number as well
    folder.mkdir(exist_ok=True)
    for number, path in enumerate(paths):
        (folder / path).write_bytes(content[number * share : (number + 1) * share])
    manifest = [{"name": name, "shape": list(array.shape), "dtype": "float32"} for name, array in arrays.items()]
    model = {
        "format": "layers-model",
        "modelTopology": {
            "keras_version": "2.2.4-tf",
            "model_config": {"class_name": "Model", "config": {"layers": layers}},
        },
        "weightsManifest": [{"paths": paths, "weights": manifest}],
    }
    (folder / "model.json").write_text(json.dumps(model))
    return folder / "model.json"
