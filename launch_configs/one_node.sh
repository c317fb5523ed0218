#!/usr/bin/env bash
# One machine of eight GPUs: four train, two generate with vLLM, two serve the judge.
# $ bash one_node.sh --plugin refiner_grpo --run published --publish.repo_id YOU/REPO --publish.checkpoints true
#
# Beside it: deepspeed_zero3.yaml (CONFIG), and `pip install 'hf-rlhf[deepspeed,vllm]'`. Which models
# are served is in the run file: the trained one, and that of its `openai` judge.
# TRAINING_GPUS, GENERATION_GPUS, JUDGE_GPUS: other GPUs. `JUDGE_GPUS=`: a judge that already runs, at
# the address in the run file. `GENERATION_GPUS=`: the training processes generate, without vLLM.
# Two machines: PART=serve on one, PART=train SERVER=ADDRESS on the other (Slurm: two_nodes.sbatch).
set -euo pipefail

part=${PART:-all}
server=${SERVER:-localhost}
config=${CONFIG:-deepspeed_zero3.yaml}
# Training has the first GPUs: accelerate looks up the cores near a GPU by its number among all.
training=${TRAINING_GPUS-0,1,2,3} generation=${GENERATION_GPUS-4,5} judging=${JUDGE_GPUS-6,7}
judge_port=${JUDGE_PORT:-8000} generation_port=${GENERATION_PORT:-8001}
listen=127.0.0.1
[[ $part == serve ]] && listen=0.0.0.0  # for the other machine: behind a firewall, there is no password

served=$(python - "$@" <<'PYTHON'
import argparse, sys
from hf_rlhf.config import choose_run_file

parser = argparse.ArgumentParser(allow_abbrev=False)
for option in ("--plugin", "--run", "--config"):
    parser.add_argument(option)
named, overrides = parser.parse_known_args()
values = choose_run_file(named.plugin, named.run, named.config).override(overrides).values
judges = {key: one["model"] for key, one in values.get("judges", {}).items() if one["name"] == "openai"}
if len(judges) != 1:
    sys.exit(f"one_node.sh serves one judge; the run file has {len(judges)} of the kind `openai`.")
print(values["model_name_or_path"], *judges.popitem())
PYTHON
)
read -r model judge judge_model <<< "$served"

servers=()
stop_servers() { for pid in "${servers[@]}"; do kill -- "-$pid" 2>/dev/null || true; done; }
trap stop_servers EXIT

serve() {  # GPUS LOG COMMAND...: in a process group of its own, which Ctrl-C does not reach
  CUDA_VISIBLE_DEVICES=$1 setsid "${@:3}" > "$2.log" 2>&1 &
  servers+=($!)
}

servers_ended() { echo "a server has ended; its log:" >&2; tail -n 20 ./*.log >&2; exit 1; }

wait_for() {  # URL: until it answers; not if a server here has ended
  local end=$((SECONDS + ${WAIT:-1800}))
  until python -c 'import sys, urllib.request as u; u.urlopen(sys.argv[1], timeout=5)' "$1" 2>/dev/null; do
    for pid in "${servers[@]}"; do
      kill -0 "$pid" 2>/dev/null || servers_ended
    done
    ((SECONDS < end)) || { echo "no server answers at $1" >&2; exit 1; }
    sleep 1
  done
}

count() { local gpus; IFS=, read -ra gpus <<< "$1"; echo "${#gpus[@]}"; }

if [[ $part != train && $judging ]]; then
  serve "$judging" judge vllm serve "$judge_model" --host "$listen" --port "$judge_port" \
    --tensor-parallel-size "$(count "$judging")" --max-model-len "${JUDGE_LENGTH:-32768}"
fi
if [[ $part != train && $generation ]]; then
  serve "$generation" generation env VLLM_SERVER_DEV_MODE=1 vllm serve "$model" --host "$listen" \
    --port "$generation_port" --tensor-parallel-size "$(count "$generation")" \
    --max-model-len "${LENGTH:-8192}" --weight-transfer-config '{"backend": "nccl"}' \
    --logprobs-mode processed_logprobs --max-logprobs -1
fi
if [[ $part == serve ]]; then
  wait -n || true
  servers_ended
fi

processes=$(count "$training")
run=("$@" --expect_world_size "$processes")
run+=(--expect_distributed "${DISTRIBUTED:-$(sed -n 's/^distributed_type: *//p' "$config")}")
if [[ $judging ]]; then
  run+=("--judges.$judge.base_url" "http://$server:$judge_port/v1")
  wait_for "http://$server:$judge_port/health"
fi
if [[ $generation ]]; then
  run+=(--use_vllm true --vllm_mode server --vllm_server_base_url "http://$server:$generation_port")
  wait_for "http://$server:$generation_port/health"
fi
export CUDA_VISIBLE_DEVICES=$training
hf-rlhf check "${run[@]}"
accelerate launch --config_file "$config" --num_processes "$processes" --enable_cpu_affinity \
  --main_process_port "${PORT:-29500}" -m hf_rlhf.train "${run[@]}" &
launcher=$!
# The servers outlive the launcher: the step under way still needs them to be saved.
trap 'kill -TERM "$launcher" 2>/dev/null' TERM INT
status=0
while wait "$launcher" && status=0 || status=$?; kill -0 "$launcher" 2>/dev/null; do :; done
exit "$status"
