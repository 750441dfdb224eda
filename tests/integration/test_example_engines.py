"""The reference Prefill and Decode give ``generate()``'s tokens, and Decode reaches nothing but epd's API."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from demo.results import word_error_rate
from demo.samples import reference_texts
from examples.epd_transformers.proof.cases import all_cases
from examples.epd_transformers.proof.run import Proof, prove

ROOT = Path(__file__).parents[2]
WHISPER = ROOT / ".epd" / "models" / "whisper-tiny.en"
#: Five processes load torch here, and other tests run at the same time.
pytestmark = pytest.mark.timeout(400)

#: A choice closer than this could be another one by the rounding of float32 alone.
LEAST_MARGIN = 1e-3
CASES = {f"{case.model}: {case.name}": case for case in all_cases()}
#: Audio, several images, and a video whose audio is encoded too.
SOME = ["whisper: speech", "qwen2_5_vl: several images", "qwen2_5_vl: video with sound"]


@pytest.fixture(
    scope="module",
    params=[pytest.param(SOME, id="some"), pytest.param(list(CASES), id="all", marks=pytest.mark.slow)],
)
def proofs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Proof]:
    if not WHISPER.is_dir():
        pytest.fail("no demo weights: run `python -m demo.weights` (make test does)")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = list(prove(tmp_path_factory.mktemp("engines"), WHISPER, [CASES[name] for name in request.param]))
    torch.set_num_threads(threads)
    return {f"{proof.case.model}: {proof.case.name}": proof for proof in found}


def test_tokens_are_those_of_generate_cold_and_from_cache(proofs: dict[str, Proof]) -> None:
    for name, proof in proofs.items():
        expected = [one.tokens for one in proof.expected]
        assert proof.cold == expected, name
        assert proof.again == expected, name
        assert proof.was_cold_first, (name, proof.cached)


def test_equal_tokens_mean_something(proofs: dict[str, Proof]) -> None:
    """No choice is a near tie, and the random models do not say one word again and again."""
    for name, proof in proofs.items():
        for one in proof.expected:
            assert one.margin > LEAST_MARGIN, name
            assert len(set(one.tokens)) > len(one.tokens) // 3, name


def test_no_two_prompts_have_the_same_answer(proofs: dict[str, Proof]) -> None:
    answers = [tuple(proof.cold[0]) for proof in proofs.values()]
    assert len(set(answers)) == len(answers)


def test_what_is_said_in_the_audio_and_in_the_video_is_heard(proofs: dict[str, Proof]) -> None:
    for proof in proofs.values():
        for audio in proof.case.audios:
            assert word_error_rate(reference_texts()[audio.name], proof.texts[-1]) < 0.05


def test_decode_reaches_epd_and_nothing_else() -> None:
    """The process as it starts, with what it would do for a request replaced by attempts to get out."""
    with socket.create_server(("127.0.0.1", 0)) as allowed, socket.create_server(("127.0.0.1", 0)) as other:
        ours, theirs = allowed.getsockname()[1], other.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-c", _OFFLINE, str(ours), str(theirs), str(WHISPER)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        other.settimeout(0.2)
        with pytest.raises(TimeoutError):  # nobody knocked
            other.accept()
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["reached", "refused", "refused", "refused", "refused"]


_OFFLINE = """
import socket, sys
from examples.epd_transformers import decode
from examples.epd_transformers.decode import NetworkIsOff

def tell(reach):
    try:
        reach()
        print("reached")
    except NetworkIsOff:
        print("refused")

def attempts(answer):
    tell(lambda: socket.create_connection(("127.0.0.1", ours), timeout=5).close())
    tell(lambda: socket.create_connection(("127.0.0.1", theirs), timeout=5))
    tell(lambda: socket.create_connection(("example.org", 80), timeout=5))
    tell(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"?", ("127.0.0.1", theirs)))
    tell(lambda: socket.socket(socket.AF_UNIX).connect("/tmp/any"))

ours, theirs, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
sys.argv[1:] = ["--epd", f"http://127.0.0.1:{ours}", "--kv", "/dev/shm", f"whisper={folder}"]
decode.serve = attempts
decode.main()
"""
