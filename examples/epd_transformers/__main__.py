"""``python -m examples.epd_transformers``: compares the three processes with transformers in one."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
import transformers

from demo.weights.ensure import ensure_weights
from examples.epd_transformers.proof.cases import all_cases
from examples.epd_transformers.proof.run import prove

MODELS = Path(".epd/models")


def main() -> int:
    """Run every case. Exit code 0 when all gave the tokens of ``generate()``, cold and from the cache."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    weights = ensure_weights(MODELS, say=print)["whisper-tiny.en"]
    equal = []
    with tempfile.TemporaryDirectory(prefix="epd-example-") as folder:
        for proof in prove(Path(folder), weights, all_cases()):
            equal.append(proof.is_equal)
            case, tokens = proof.case, sum(map(len, proof.cold))
            print(f"{case.model:10} {case.name:16} {tokens:3} tokens, equal: {str(proof.is_equal).lower()}")
            for audio, text in zip(case.audios, proof.texts[-len(case.audios) :], strict=False):
                print(f"{'':10} heard in {audio.name}: {text}")
    print(f"tokens equal: {str(all(equal)).lower()}")
    return 0 if all(equal) else 1


if __name__ == "__main__":
    sys.exit(main())
