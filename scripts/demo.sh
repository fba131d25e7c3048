#!/bin/sh
# Train a small model on the source code of Python's standard library: make a vocabulary and a
# dataset, train, kill the training, resume it, find the bad document that was planted in the text by
# its losses, and generate text.
set -eu
mkdir -p demo
rm -rf demo/runs
if [ ! -d demo/text ]; then
    python - <<'PYTHON'
import random, shutil, sysconfig
from pathlib import Path

library = Path(sysconfig.get_paths()["stdlib"])
for path in sorted(library.rglob("*.py")):
    if "site-packages" not in path.parts:
        target = Path("demo/text") / path.relative_to(library)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
# A bad document, which tokenmill spikes must find: random characters, pasted four times.
characters = random.Random(1)
noise = "".join(chr(characters.randrange(0x4E00, 0x9FFF)) for _ in range(1000))
Path("demo/text/pasted_noise.py").write_text(noise * 4, encoding="utf-8")
PYTHON
fi
show() { printf '\n$ %s\n' "$*"; "$@"; }
show tokenmill tokenizer train demo/text --vocab-size 2048 --out demo/tokenizer.json
show tokenmill prepare demo/text --tokenizer demo/tokenizer.json --out demo/stdlib
show tokenmill info demo/stdlib
show tokenmill peek demo/stdlib --document 100 --length 60

set -- tokenmill train demo/stdlib --config tiny --name tiny --runs demo/runs
printf '\n$ %s\n' "$*"
"$@" &
training=$!
trap 'kill -9 "$training" 2>/dev/null; exit 130' INT TERM
while [ ! -d demo/runs/tiny/checkpoints/step_0000400 ] && kill -0 "$training" 2>/dev/null; do
    sleep 0.2
done
kill -9 "$training"
wait "$training" 2>/dev/null || true
trap - INT TERM
printf '\nKilled the training with SIGKILL. The same command resumes it:\n'
show "$@"
printf '\nThe text has a bad document, pasted_noise.py. Its losses name it:\n'
show tokenmill spikes demo/runs/tiny --limit 2
# Both directions: from the worst row to its documents, and from the document to its rows.
row=$(tokenmill spikes demo/runs/tiny --limit 1 --json |
    python -c 'import json, sys; print(json.load(sys.stdin)["rows"][0]["explained"]["place"]["row"])')
printf '\n$ tokenmill explain --run demo/runs/tiny --row %s --text-length 30 | head -n 8\n' "$row"
tokenmill explain --run demo/runs/tiny --row "$row" --text-length 30 | head -n 8
show tokenmill where --run demo/runs/tiny pasted_noise.py
printf "\n$ tokenmill sample tiny --runs demo/runs --prompt 'class Reader:' --temperature 0.5\n"
tokenmill sample tiny --runs demo/runs --prompt 'class Reader:' --temperature 0.5
printf '\nResults:\n'
printf '  %s\n' "demo/stdlib                     the dataset" \
    "demo/runs/tiny/loss.svg         the loss curves; open it in a browser" \
    "demo/runs/tiny/metrics.jsonl    every number of the run" \
    "demo/runs/tiny/row_losses.f32   the loss of every row" \
    "demo/runs/tiny/checkpoints      the model, as safetensors"
