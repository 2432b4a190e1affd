#!/bin/sh
# Measures on a GPU what is worth knowing first, the most important part first:
#
#   sh eval/bench/gpu.sh FOLDER                    # all parts
#   sh eval/bench/gpu.sh FOLDER tests attention    # some of them
#
# Each part has its own time limit, at most 24 minutes together, and writes to FOLDER as it goes. A part that fails
# does not stop the next one. MODEL=610m measures the training steps of another preset.
set -u
[ $# -gt 0 ] || { echo "usage: sh eval/bench/gpu.sh FOLDER [tests] [attention] [step_clm] [...]" >&2; exit 2; }
out=$(mkdir -p "$1" && cd "$1" && pwd) || exit 2
shift
parts=${*:-tests attention step_clm step_mlm train}
cd "$(dirname "$0")/../.." || exit 2
export PYTHONUNBUFFERED=1

part() { # name, limit in seconds, command
    name=$1 limit=$2
    shift 2
    case " $parts " in *" $name "*) ;; *) return ;; esac
    began=$(date +%s)
    timeout -k 10 "$limit" "$@" >"$out/$name.txt" 2>&1
    echo "$name: exit $? (124: out of time), $(($(date +%s) - began)) s, $out/$name.txt" | tee -a "$out/summary.txt"
}

# Without the tests that need no GPU: the interpreter and the compilation ahead of time.
part tests 480 python3 -m pytest tests/test_gpu.py tests/test_kernels.py -k "not interpreted and not ahead" -rs
part attention 240 python3 -m eval.bench attention --out="$out/attention.jsonl"
part step_clm 300 python3 -m eval.bench step --model="${MODEL:-210m}" --phase=clm --micro_batch=16
part step_mlm 300 python3 -m eval.bench step --model="${MODEL:-210m}" --phase=mlm --micro_batch=16
part train 120 python3 train.py --out_dir="$out/demo"
