"""Creates the files of ``examples/media`` from their sources: ``python -m demo.media PHOTOS SPEECH [OUT]``.

PHOTOS is scikit-image's ``skimage/data`` folder, SPEECH the ``test/data/librivox`` folder of Debian's
package ``pocketsphinx-testdata``. The files are in the repository; this module documents their origin.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import imageio_ffmpeg
from PIL import Image, ImageOps

LONG_SIDE = 480
QUALITY = 85

#: Output name: source name in PHOTOS.
PHOTOS = {
    "astronaut.jpg": "astronaut.png",
    "cat.jpg": "chelsea.png",
    "coffee.jpg": "coffee.png",
    "galaxies.jpg": "hubble_deep_field.jpg",
    "rocket.jpg": "rocket.jpg",
}
QUERY = "query.jpg"
CLIP, CLIP_SPEECH = "launch.mp4", "sense_and_sensibility_01_austen_64kb-0870.wav"
AUDIO, AUDIO_SPEECH = "speech.ogg", "sense_and_sensibility_01_austen_64kb-0890.wav"

#: What is said, as the novel has it (Jane Austen, Sense and Sensibility, chapter 1).
REFERENCES = {
    CLIP: "And Mr. John Dashwood had then leisure to consider how much there might be "
    "prudently in his power to do for them.",
    AUDIO: "Unless to be rather cold hearted and rather selfish is to be ill-disposed.",
}

#: A slow zoom into the photo at 15 frames per second, with even sides, as yuv420p requires.
ZOOM = "scale=1280:-2,zoompan=z='1+0.004*on':x='iw/2-iw/zoom/2':y='ih/2-ih/zoom/2':d=1:s=480x320:fps=15"


def main() -> None:
    """Create every file in OUT (default ``examples/media``)."""
    photos, speech = Path(sys.argv[1]), Path(sys.argv[2])
    out = Path(sys.argv[3]) if len(sys.argv) > 3 else Path("examples/media")
    out.mkdir(parents=True, exist_ok=True)
    for name, source in PHOTOS.items():
        _save_photo(Image.open(photos / source), out / name)
    _save_photo(_query(Image.open(photos / "chelsea.png")), out / QUERY)
    _make_clip(photos / "rocket.jpg", speech / CLIP_SPEECH, out / CLIP)
    _ffmpeg("-i", str(speech / AUDIO_SPEECH), "-c:a", "libopus", "-b:a", "32k", str(out / AUDIO))
    text = json.dumps(REFERENCES, indent=2, ensure_ascii=False)
    (out / "REFERENCES.json").write_text(text + "\n", "utf-8")


def _query(photo: Image.Image) -> Image.Image:
    """The cat again, mirrored and cropped: different bytes and pixels, the same subject."""
    width, height = photo.size
    return ImageOps.mirror(photo.crop((width // 8, height // 12, width * 7 // 8, height)))


def _save_photo(photo: Image.Image, path: Path) -> None:
    small = ImageOps.contain(photo.convert("RGB"), (LONG_SIDE, LONG_SIDE), Image.Resampling.LANCZOS)
    small.save(path, quality=QUALITY, optimize=True)


def _make_clip(photo: Path, speech: Path, path: Path) -> None:
    audio = ["-c:a", "aac", "-b:a", "64k", "-ar", "44100"]
    image = ["-c:v", "libx264", "-preset", "veryslow", "-crf", "27", "-pix_fmt", "yuv420p"]
    inputs = ["-loop", "1", "-framerate", "15", "-i", str(photo), "-i", str(speech)]
    _ffmpeg(*inputs, "-vf", ZOOM, "-shortest", *image, *audio, "-movflags", "+faststart", str(path))


def _ffmpeg(*arguments: str) -> None:
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-nostdin", "-v", "error", "-y", "-bitexact", *arguments]
    subprocess.run(command, check=True, timeout=300)


if __name__ == "__main__":
    main()
