#!/bin/sh
# The encoder of Moonshine Streaming has sliding windows, so that it can hear a sound while it comes in. In transformers
# its layers get them as masks, which are made where the caller gives an attention mask, and only there.
#
# So a mask of ones, which hides nothing, changes the results: with it a row sees its window, and a change of the
# sound's end leaves the first rows as they were. Without a mask every row sees all others.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 1' HUP INT TERM
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --disable-pip-version-check numpy==2.3.5 torch==2.13.0 transformers==5.24.0
"$folder/venv/bin/python" - << 'END'
import sys

import torch
import transformers
from transformers.models.moonshine_streaming import modeling_moonshine_streaming as moonshine

torch.manual_seed(1)
config = transformers.AutoConfig.for_model(
    "moonshine_streaming_encoder", hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=2, sliding_windows=[[4, 1], [4, 1]])
model = moonshine.MoonshineStreamingEncoder(config).eval()
sound = torch.randn(1, 25600)
other = sound.clone()
other[:, -6400:] = torch.randn(1, 6400)  # its end is another


@torch.no_grad()
def changed(**more):
    """Which of the rows differ by the end of the sound."""
    one, two = (model(x, **more).last_hidden_state[0] for x in (sound, other))
    return [row for row in range(len(one)) if (one[row] - two[row]).abs().max() > 1e-5], len(one)


print("torch", torch.__version__.split("+")[0], "transformers", transformers.__version__)
(free, count), (windowed, _) = changed(), changed(attention_mask=torch.ones_like(sound))
print(f"{count} rows; the last fourth of the sound changes, with windows of 4 rows")
print(f"without a mask rows {free[0]} to {free[-1]} change, {len(free)} of them")
print(f"with a mask of ones rows {windowed[0]} to {windowed[-1]} change, {len(windowed)} of them")
sys.exit(0 if free[0] == 0 and len(free) == count and windowed[0] > count // 2 else "this has changed")
END
