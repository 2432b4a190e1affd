#!/bin/sh
# What to measure when a GPU is at hand and minutes are counted, the most important first:
#
#   sh eval/gpu.sh FOLDER                  # all parts
#   sh eval/gpu.sh FOLDER tests kernels    # some of them
#
# Each part has its own time limit, at most 24 minutes together, and writes to FOLDER as it goes; one that fails
# does not stop the next. MODEL=610m measures the steps of another preset.
set -u
[ $# -gt 0 ] || { echo "usage: sh eval/gpu.sh FOLDER [tests] [kernels] [step_clm] [...]" >&2; exit 2; }
out=$(mkdir -p "$1" && cd "$1" && pwd) || exit 2
shift
parts=${*:-tests kernels step_clm step_mlm train}
cd "$(dirname "$0")/.." || exit 2
export PYTHONUNBUFFERED=1

part() { # name, limit in seconds, command
    name=$1 limit=$2
    shift 2
    case " $parts " in *" $name "*) ;; *) return ;; esac
    began=$(date +%s)
    timeout -k 10 "$limit" "$@" >"$out/$name.txt" 2>&1
    echo "$name: exit $? (124: out of time), $(($(date +%s) - began)) s, $out/$name.txt" | tee -a "$out/summary.txt"
}

# Without those that need no GPU: the interpreter and the compilation ahead of time.
part tests 480 python3 -m pytest tests/test_gpu.py tests/test_kernels.py -k "not interpreted and not ahead" -rs
part kernels 240 python3 eval/bench.py kernels --quick=True --search=True --out="$out/kernels.jsonl"
part step_clm 300 python3 eval/bench.py step --model="${MODEL:-210m}" --phase=clm --micro_batch=16
part step_mlm 300 python3 eval/bench.py step --model="${MODEL:-210m}" --phase=mlm --micro_batch=16
part train 120 python3 train.py --out_dir="$out/demo"
