#!/bin/sh
# What `make demo` shows. Everything is written to demo-output/, which git ignores; each run starts afresh.
set -eu
source=fixtures/files/keras-2.3.1-two-towers.h5
out=demo-output
rm -rf "$out"
mkdir "$out"

say() { printf '\n# %s\n' "$1"; }
run() { printf '$ %s\n' "$*"; "$@"; }

say "A file that Keras 2.3.1 saved from a model in multi_gpu_model. What is in it?"
run ckpttool inspect "$source"
say "The model inside, every weight bit for bit, in a file that tf_keras and the old Keras open."
run ckpttool unwrap "$source" -o "$out/base.h5" --report "$out/report.json"
run ckpttool inspect "$out/base.h5"
say "One layer of the wrapped file as arrays."
run ckpttool extract "$source" --layer image_embedding
run ckpttool extract "$source" --layer image_embedding -o "$out/image_embedding"
say "The same layer as a function: a module that needs NumPy alone."
run ckpttool extract "$source" --layer image_embedding --dot-product "$out/scores.py"
python - "$out" <<'PYTHON'
import sys
import numpy as np
kernel = np.load(f"{sys.argv[1]}/image_embedding/kernel.npy")
np.save(f"{sys.argv[1]}/vectors.npy", kernel[:3])
PYTHON
say "Three of its own rows as queries. Columns: query, row, cosine. Each row finds itself first, at 1."
run python "$out/scores.py" "$out/vectors.npy" --top 3 --normalize
printf '\nWhat was written is in %s/.\n' "$out"
