#!/usr/bin/env bash
# Plan → train → report: the fastest cut and schedule for this machine, a run of it, and a page that says where time went.
#
#     bash examples/plan_train_report.sh [FOLDER] [SIZE OPTIONS]     such as: runs/example --layers 4 --dim 64 --steps 20
set -euo pipefail

folder=${1:-runs/example}
shift || true
model=() train=()
while (($#)); do # options of the model go to both commands, --steps only to the training
    if [[ $1 == --steps || $1 == --data ]]; then train+=("$1" "$2"); else model+=("$1" "$2"); fi
    shift 2
done
mkdir -p "$folder"

# 1. Measure the model's layers here, and choose schedule, cut and micro-batches.
headrace plan "${model[@]}" --ranks 2 --schedules gpipe,1f1b,zb-h1 -o "$folder/plan.json"

# 2. Train with that plan; a stale one would be refused by name.
headrace train "${model[@]}" --plan "$folder/plan.json" "${train[@]}" --out "$folder/run"

# 3. One page that opens offline: predicted beside measured, memory, the cut, the losses.
if headrace report --help >/dev/null 2>&1; then
    headrace report "$folder/run" -o "$folder/report.html"
fi

# And what another plan would gain, with the costs that the run has shown.
headrace plan --from "$folder/run"
