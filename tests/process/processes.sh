#!/usr/bin/env bash
# Whole runs as processes: the same under `zerosharp launch` and mpirun, one rank's death ends all, and
# bad input is one message before anything is trained.   usage: processes.sh ZEROSHARP NAN_DATA
set -uo pipefail
program=$1
nan_data=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
checks=0
failures=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

check() {  # description, condition as a command
  checks=$((checks + 1))
  local what=$1
  shift
  if ! "$@"; then
    failures=$((failures + 1))
    echo "FAILED: $what"
    [ -e "$work/err" ] && sed 's/^/  | /' "$work/err" | head -n 12
  fi
}

for i in $(seq 400); do echo "line $i of a text that repeats itself with the number $((i * i % 97))."; done >"$work/text"
cat >"$work/config.json" <<JSON
{
  "model": { "type": "gpt", "n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 16 },
  "data": { "path": "$work/text" },
  "train_batch_size": 8, "gradient_clipping": 1.0,
  "zero_optimization": { "stage": 1 },
  "optimizer": { "type": "AdamW", "params": { "lr": 0.01 } },
  "sam": { "enabled": true },
  "train": { "steps": 4, "device": "cpu", "threads": 1, "sample_length": 0, "eval_batches": 2 }
}
JSON

losses() { python3 -c '
import json, sys
print([json.loads(line)["loss"] for line in open(sys.argv[1]) if "loss_scale" in line])' "$1/metrics.jsonl"; }
close() { python3 -c '
import ast, sys
a, b = ast.literal_eval(sys.argv[1]), ast.literal_eval(sys.argv[2])
sys.exit(not (len(a) == len(b) == 4 and all(abs(x - y) <= 1e-5 * abs(x) for x, y in zip(a, b))))' "$1" "$2"; }

# --- The same run, however it is started -----------------------------------------------------------------
one=
for ranks in 1 2 4; do
  "$program" launch -n $ranks -- train "$work/config.json" --out "$work/launch$ranks" >"$work/out" 2>"$work/err"
  check "launch with $ranks ranks ends with 0" test $? -eq 0
  mpirun -n $ranks --oversubscribe --bind-to none "$program" train "$work/config.json" --out "$work/mpirun$ranks" \
    >"$work/out" 2>"$work/err"
  check "mpirun with $ranks ranks ends with 0" test $? -eq 0
  check "launch and mpirun give the same bits at $ranks ranks" \
    test "$(losses "$work/launch$ranks")" = "$(losses "$work/mpirun$ranks")"
  [ -n "$one" ] || one=$(losses "$work/launch1")
  check "$ranks ranks give one rank's losses" close "$one" "$(losses "$work/launch$ranks")"
done

# --- One rank dies ------------------------------------------------------------------------------------------
"$program" launch -n 2 -- train "$work/config.json" train.steps=100000 --out "$work/killed" >"$work/out" 2>"$work/err" &
launcher=$!
for _ in $(seq 100); do
  [ -s "$work/killed/metrics.jsonl" ] && break
  sleep 0.1
done
victim=$(pgrep -f "train $work/config.json train.steps=100000 --out $work/killed" | while read -r pid; do
  tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -qx 'OMPI_COMM_WORLD_RANK=1' && echo "$pid"; done | head -n 1)
start=$SECONDS
kill -9 "$victim"
wait $launcher
code=$?
check "a killed rank makes the launcher fail with 137" test $code -eq 137
check "all ended within 10 s" test $((SECONDS - start)) -le 10
check "the killed rank is named" grep -q 'rank 1 was killed by signal 9' "$work/err"
check "nothing is left running" test -z "$(pgrep -f "out $work/killed" || true)"

# --- A signal stops after a step ------------------------------------------------------------------------------
"$program" train "$work/config.json" train.steps=100000 --out "$work/stopped" >"$work/out" 2>"$work/err" &
pid=$!
for _ in $(seq 100); do
  [ -s "$work/stopped/metrics.jsonl" ] && break
  sleep 0.1
done
kill -TERM $pid
wait $pid
check "SIGTERM ends with 143" test $? -eq 143
check "a stopped run has its summary" test -s "$work/stopped/summary.json"

# --- Bad input: exit code 2, one message that names the cause, no metrics -------------------------------------------
bad() {  # description, expected text, arguments of train…
  local what=$1 text=$2
  shift 2
  rm -rf "$work/bad"
  "$program" train "$work/config.json" --out "$work/bad" "$@" >"$work/out" 2>"$work/err"
  local code=$?
  check "$what: exit code 2, got $code" test $code -eq 2
  check "$what: says '$text'" grep -qF -- "$text" "$work/err"
  check "$what: one message" test "$(grep -c 'zerosharp: error:' "$work/err")" -eq 1
  check "$what: nothing trained" test ! -s "$work/bad/metrics.jsonl"
}
: >"$work/empty"
printf 'hello' >"$work/short"
bad "missing text" "does not exist" "data.path=$work/nowhere"
bad "empty text" "is empty" "data.path=$work/empty"
bad "text shorter than a block" "5 bytes" "data.path=$work/short"
bad "folder as text" "is a folder" "data.path=$work"
bad "batch that does not divide" "10 != 3 * 1 * 1" train_batch_size=10 train_micro_batch_size_per_gpu=3 gradient_accumulation_steps=1
bad "batch larger than the data" "fewer than train_batch_size" train_batch_size=100000
bad "unknown optimizer" "AdamW|Adam" optimizer.type=Adamax
bad "unknown key" "did you mean optimizer.params.lr" optimizer.params.lrr=1
bad "negative rho" "sam.rho" sam.rho=-0.1
bad "stage 3" "stage 3 is not available" zero_optimization.stage=3
bad "no steps" "train.steps" train.steps=0
bad "width and heads" "not a multiple" model.n_embd=15
"$program" train "$work/config.json" --out /proc/nowhere >"$work/out" 2>"$work/err"
check "unwritable output: exit code 2" test $? -eq 2
check "unwritable output is named" grep -q '/proc/nowhere' "$work/err"
"$program" launch -n 0 -- train "$work/config.json" >"$work/out" 2>"$work/err"
check "zero ranks: exit code 2" test $? -eq 2
check "zero ranks are named" grep -q 'at least 1, got 0' "$work/err"
"$program" launch -n 2 -- train "$work/config.json" "data.path=$work/nowhere" >"$work/out" 2>"$work/err"
check "an error of all ranks: exit code 2" test $? -eq 2
check "an error of all ranks is shown once" test "$(grep -c 'does not exist' "$work/err")" -eq 1

# --- A loss that is NaN from the first step: exit code 1, one message, no weight changed ------------------------
cat >"$work/nan.json" <<JSON
{
  "model": { "type": "mlp", "hidden_sizes": [16] },
  "data": { "type": "fashion_mnist", "path": "in memory" },
  "train_batch_size": 8,
  "optimizer": { "type": "AdamW", "params": { "lr": 0.1 } },
  "train": { "steps": 3, "device": "cpu", "threads": 1 }
}
JSON
for ranks in 1 2; do
  for options in "zero_optimization.stage=0" "zero_optimization.stage=1 bf16.enabled=true sam.enabled=true"; do
    "$nan_data" launch -n $ranks -- train "$work/nan.json" $options >"$work/out" 2>"$work/err"
    code=$?
    what="NaN loss on one of $ranks rank(s), $options"
    check "$what: exit code 1, got $code" test $code -eq 1
    check "$what: is named" grep -q 'the loss of the first step is nan; no weight was changed' "$work/err"
    check "$what: one message" test "$(grep -c 'error:' "$work/err")" -eq 1
    check "$what: every rank has its weights" test "$(grep -c 'unchanged$' "$work/out")" -eq $ranks
  done
done

echo "$checks checks, $failures failed"
test $failures -eq 0
