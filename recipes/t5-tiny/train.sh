#!/bin/sh
# The embedded model t5-tiny from its corpus to its scores: cleaning, tokenizer and part one, part two, comparison.
#
#   sh recipes/t5-tiny/train.sh CORPUS DATA OUTPUT [FIRST]
#
# CORPUS holds text*.txt.bz2, tasks.jsonl.xz and task_definitions.json; DATA the tasks' rows, as --data-dir has them; FIRST is a model's
# folder to compare with. The models go to OUTPUT/part1 and OUTPUT/t5-tiny, the scores to OUTPUT/backbones. Run it in the repository's
# root, with softprompts installed. What is finished is not made again; what was killed goes on.
set -eu
[ $# -ge 3 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
corpus=$1 data=$2 out=$3 first=${4:-}
clean=$out/clean

if [ ! -e "$clean/clean.json" ]; then
    python recipes/t5-tiny/clean.py --corpus "$corpus" --data "$data" --output "$clean"
fi

learn() {
    softprompts pretrain --text "$clean/text.txt.bz2" --tasks "$clean/tasks.jsonl.bz2" --definitions "$corpus/task_definitions.json" \
        --input-length 256 --batch-tokens 160000 --lr 3e-3 --saved bf16 "$@"
}

if [ ! -e "$out/part1/training.json" ]; then # it trains the tokenizer too, on the cleaned data
    learn --size tiny --vocabulary 16000 --sentinels 100 --objectives span=0.45,prefix=0.2,tasks=0.35 \
        --schedule constant --warmup 300 --steps 5898 --output "$out/part1"
fi

if [ ! -e "$out/t5-tiny/training.json" ]; then
    learn --from "$out/part1" --objectives span=0.25,prefix=0.2,tasks=0.55 \
        --schedule linear --warmup 100 --steps 8500 --seed 2 --output "$out/t5-tiny"
fi

settings=$out/t5-tiny/tokenizer_config.json # positions are relative: inputs may be longer than those it learned from
sed 's/"model_max_length": 256/"model_max_length": 512/' "$settings" > "$settings.new"
mv "$settings.new" "$settings"

python benchmarks/backbones.py ${first:+"first=$first"} "new=$out/t5-tiny" --data-dir "$data" --output "$out/backbones"
