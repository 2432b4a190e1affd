#!/bin/sh
# Tests and measures on a GPU what is worth knowing, the most important part first:
#
#   sh eval/bench/gpu.sh FOLDER                             # all parts, at most 24 minutes
#   MODEL=610m MICRO=12 sh eval/bench/gpu.sh FOLDER step    # some of them, for another preset and micro_batch
#
# Each start writes to a new folder in FOLDER. A part prints as it goes, has a time limit of its own, and does not stop
# the next one when it fails.
set -u
[ $# -gt 0 ] || { echo "usage: sh eval/bench/gpu.sh FOLDER [tests] [doctor] [...]" >&2; exit 2; }
out=$1/$(date +%Y-%m-%d-%H%M%S)-$$
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 2
shift
parts=${*:-tests doctor kernels train finetune two_gpus step attention}
cd "$(dirname "$0")/../.." || exit 2
export PYTHONUNBUFFERED=1
MODEL=${MODEL:-210m} MICRO=${MICRO:-16}

part() { # name, limit in seconds, command
    name=$1 limit=$2
    shift 2
    case " $parts " in *" $name "*) ;; *) return ;; esac
    echo "--- $name: $*" | tee "$out/$name.txt"
    tail -n 0 -f "$out/$name.txt" &
    began=$(date +%s)
    timeout -k 10 "$limit" "$@" >>"$out/$name.txt" 2>&1
    code=$?
    sleep 0.5 && kill $! # what `tail` has not shown yet
    echo "$name: exit $code (124: out of time), $(($(date +%s) - began)) s, $out/$name.txt" | tee -a "$out/summary.txt"
}

# A few steps of a preset on the text that comes with Python, in windows of 2,048 tokens.
preset="config/$MODEL.py --data=data/prepared/embedded --vocab_size=128256 --micro_batch=$MICRO --max_steps=30
    --global_batch_tokens=$((MICRO * 4096)) --switch_step=15 --warmup_steps=5 --decay_steps=5 --log_interval=5
    --eval_interval=15 --eval_windows=8 --keep_steps=()"

part tests 300 python3 -m pytest tests/test_gpu.py -v -rs
part doctor 410 python3 -m eval.bench doctor
# Without the tests that need no GPU: the interpreter and the compilation ahead of time.
part kernels 80 python3 -m pytest tests/test_kernels.py -v -rs -k "not interpreted and not ahead"
part train 150 python3 train.py $preset --out_dir="$out/train"
part finetune 60 python3 finetune.py --task=embedded-tc --lr=1e-4 --max_steps=50 --init_from="$out/train" --out_dir="$out/finetune"
# With one GPU it fails at once, and says so.
part two_gpus 120 python3 -m torch.distributed.run --standalone --nproc_per_node=2 train.py $preset --out_dir="$out/two"
part step 180 python3 -m eval.bench step --model="$MODEL" --micro_batch="$MICRO" --only=compiled,compiled_muon,compiled_sdpa,transformers
part attention 120 python3 -m eval.bench attention

echo "--- summary"
cat "$out/summary.txt"
