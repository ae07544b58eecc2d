#!/bin/sh
# All that is claimed for a GPU, beside PEFT: sh benchmarks/gpu.sh FOLDER. About ten minutes on one H200, half of it compiling PEFT.
set -e
out=${1:?name a folder for the results}
run() { name=$1; shift; echo "== $name"; python -u "benchmarks/$1.py" --output "$out/$name.json" $(shift; echo "$@") || echo "$name failed"; }
run training-t5-base-1x8 training --model t5-base --prompt 100 --runs 8 --alone 1 --steps 20 --warmup 16 --peers eager,regions
run inference-t5-base inference --model t5-base --rounds 4
run decoding-llama-135m decoding --model llama-135m --rounds 5
run smop-t5-large smop --model t5-large --warmup 24
run training-t5-base-32 training --model t5-base --prompt 100 --runs 32 --alone 1 --steps 8 --warmup 4 --peers eager
run training-t5-large-8 training --model t5-large --prompt 100 --runs 8 --alone 1 --steps 12 --warmup 12 --peers eager
run profile-t5-base-r8 step_profile --model t5-base --prompt 100 --runs 8
run profile-t5-tiny-r32 step_profile --model t5-tiny --prompt 20 --runs 32
python -u benchmarks/short_of_memory.py || echo short_of_memory failed
run training-t5-base-peft-compiled training --model t5-base --prompt 100 --runs 1 --steps 16 --warmup 16 --peers eager,padded,dynamic
