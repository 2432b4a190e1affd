#!/bin/sh
# Measures on a GPU what is worth knowing, the most important part first, in at most 24 minutes:
#
#   sh eval/bench/gpu.sh FOLDER [SECONDS]
#
# The parts run in the background and outlive this command. It waits for them, SECONDS at most, and prints a summary.
# Call it again to wait for the rest; parts that have ended do not run again. FOLDER gets the output of each part, and
# results.tar.gz with all that is worth keeping, written anew after each part. The summary has the lines with numbers.
set -u
[ $# -gt 0 ] || { echo "usage: sh eval/bench/gpu.sh FOLDER [SECONDS]" >&2; exit 2; }
mkdir -p "$1" && out=$(cd "$1" && pwd) || exit 2
cd "$(dirname "$0")/../.." || exit 2
export PYTHONUNBUFFERED=1

pack() { # the summary, texts, metrics and results, in one file that is always whole
    numbers=', torch |agree|device=|what to set|error|FAILED|MFU|medians|ward |passed|failed|: exit '
    (date +%F && cd "$out" && grep -sE "$numbers" ./*.txt) >"$out/summary.$$"
    mv "$out/summary.$$" "$out/summary"
    files=$(cd "$out" && find . -name '*.txt' -o -name metrics.jsonl -o -name result.json)
    # shellcheck disable=SC2086
    tar -czf "$out/pack.$$" -C "$out" summary $files
    [ $? -lt 2 ] && mv "$out/pack.$$" "$out/results.tar.gz" # 1: a part has written while tar was reading
}

part() { # name, seconds, command. A part may also use the seconds that the parts before it have left.
    [ ! -e "$out/$1.done" ] || return 0
    name=$1 deadline=$((deadline + $2)) began=$(date +%s)
    shift 2
    echo "--- $name: $*" >>"$out/$name.txt"
    timeout -s INT -k 15 $((deadline > began + 10 ? deadline - began : 10)) "$@" >>"$out/$name.txt" 2>&1 </dev/null
    echo "$name: exit $? (124: out of time), $(($(date +%s) - began)) s" >>"$out/parts.txt"
    touch "$out/$name.done"
    pack
}

run_all() {
    doctor="python3 -m eval.bench.doctor" attention="python3 docs/results/speed/attention.py"
    deadline=$(date +%s) several=
    dense="$attention --head_dims=64,96 --groups=1,3 --documents=0 --only=ours,cudnn,flash"
    # Twelve steps of CLM, then of MLM. metrics.jsonl has tokens/s and the FLOPs of each.
    steps="--vocab_size=128256 --data=data/prepared/embedded --max_steps=24 --switch_step=12 --warmup_steps=0 --decay_steps=0
    --keep_steps=() --log_interval=1 --eval_interval=1000 --eval_windows=1 --checkpoint_interval=1000 --verify_data=False"
    # A card that is throttled shows here, and in the bare product and copy of the first part.
    clocks=timestamp,clocks.sm,clocks.mem,power.draw,temperature.gpu
    timeout 1800 nvidia-smi --query-gpu=$clocks --format=csv -l 5 >"$out/clocks.txt" 2>&1 9>&- &
    watching=$!
    python3 -c "import xdist" 2>/dev/null && several="-n 6"
    # shellcheck disable=SC2086
    {
        part bare 30 $attention --lengths=,
        part facts 20 $doctor --head_dims=
        part kernels 80 $doctor --head_dims=64,96
        part step_610m 120 python3 train.py config/610m.py $steps --global_batch_tokens=147456 --out_dir="$out/610m"
        part attention_2k 60 $dense --lengths=2048
        part tests 170 python3 -m pytest tests/test_gpu.py tests/test_kernels.py -vv -rs $several \
            -k "not interpreted and not ahead"
        part step_1b 120 python3 train.py config/1b.py $steps --global_batch_tokens=98304 --out_dir="$out/1b"
        part documents 90 $attention --head_dims=64,96 --groups=1,3 --documents=512 --only=ours,varlen
        part step_210m 70 python3 train.py config/210m.py $steps --global_batch_tokens=294912 --out_dir="$out/210m"
        part resume 160 python3 -m pytest tests/test_gpu.py -vv -m slow -k real_width --basetemp="$out/resume"
        encoder=$(ls "$out"/resume/*/whole/ckpt-*.pt 2>/dev/null | head -n 1) # without one, the demo
        if [ ! "$encoder" ]; then
            encoder=$out/demo
            part demo 30 python3 train.py --max_steps=20 --switch_step=10 --warmup_steps=5 --decay_steps=5 \
                --out_dir="$encoder" --resume=True
        fi
        part finetune 60 python3 finetune.py --task=embedded-tc --lr=1e-4 --max_steps=50 --init_from="$encoder" \
            --out_dir="$out/finetune"
        part attention_8k 60 $dense --lengths=8192
        part kernels_rest 60 $doctor --head_dims=128,32
        for more in --optimizer=muon --attention=sdpa; do
            part "step$more" 80 python3 train.py config/210m.py $steps --micro_batch=36 --global_batch_tokens=73728 $more \
                --out_dir="$out/210m$more"
        done
    }
    kill $watching 2>/dev/null
    touch "$out/all.done"
}

if [ "${2:-}" = --run ]; then # this is the process in the background; it holds the lock as long as it lives
    exec 9>"$out/lock"
    flock -n 9 && run_all
    exit
fi
if ! python3 -c "import sys, torch; sys.exit(not torch.cuda.is_available())"; then
    echo "PyTorch finds no GPU here: nothing to measure"
    exit 1
fi
# Shells ignore INT in what they start in the background, and Python would then ignore it too: give it back.
setsid -f env --default-signal=INT sh eval/bench/gpu.sh "$out" --run >>"$out/log.txt" 2>&1 </dev/null
echo "running in the background; the output is in $out"
began=$(date +%s) limit=${2:-1800}
while [ ! -e "$out/all.done" ] && [ $(($(date +%s) - began)) -lt "$limit" ]; do
    sleep 1
done
[ -e "$out/all.done" ] || pack # with what the part that is running has printed
cat "$out/summary"
[ -e "$out/all.done" ] || echo "not done yet: call this again to wait for the rest"
