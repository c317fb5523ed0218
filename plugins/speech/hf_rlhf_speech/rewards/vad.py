"""Small networks that come inside other packages, and the voice activity detector among them.

Only the ONNX files of the packages are used, so that nothing else is imported: silero-vad (MIT) and
speechmos (MIT).
"""

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hf_rlhf.errors import ModelError
from hf_rlhf_speech.audio import Wave

VAD_PACKAGES = ("onnxruntime", "silero_vad")
VAD_FRAME = 512
_CONTEXT = 64


@lru_cache(maxsize=3)
def onnx_session(package: str, file: str, distribution: str) -> Any:
    """Return an ONNX session of one thread; a process has one for each network."""
    import onnxruntime

    spec = find_spec(package)
    path = Path(next(iter(spec.submodule_search_locations or ())), file) if spec else None
    if path is None or not path.is_file():
        raise ModelError(
            f"{file} of the package {distribution} is missing. `pip install {distribution}`"
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def speech_probabilities(wave: Wave) -> NDArray[np.float32]:
    """Return the probability of speech in each 32 ms of a wave of 16 kHz."""
    count = -(-len(wave) // VAD_FRAME)
    frames = np.zeros((count, VAD_FRAME), np.float32)
    frames.reshape(-1)[: len(wave)] = wave
    context = np.zeros((count, _CONTEXT), np.float32)
    context[1:] = frames[:-1, -_CONTEXT:]
    state = np.zeros((1, 1, 128), np.float32)
    inputs = {"input": np.concatenate([context, frames], axis=1), "h": state, "c": state}
    session = onnx_session("silero_vad", "data/silero_vad_16k_sequence.onnx", "silero-vad")
    probabilities: NDArray[np.float32] = session.run(["speech_probs"], inputs)[0]
    return probabilities.ravel()
