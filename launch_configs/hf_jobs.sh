#!/usr/bin/env bash
# Hugging Face Jobs: eight A100s for a day; checkpoints go to the Hub, for a job's disk is not kept.
# $ JUDGE=start bash hf_jobs.sh YOU/REPO --plugin refiner_grpo --run published --attn_implementation sdpa
#
# JUDGE=start: the job also serves the judge and generates with vLLM (one_node.sh), on eight GPUs.
# JUDGE=https://HOST/v1: a judge that runs elsewhere. Without JUDGE the run file is used as it is.
# Without --timeout a job ends after 30 minutes, and what was not pushed is lost.
# FLAVOR: see `hf jobs hardware`. PIP: what to install. JOB_OPTIONS: `--dry-run` submits nothing;
# `-v .:/here` shows the job this folder, for --config /here/RUN.yaml.
set -euo pipefail

repo=${1:?"which repository? bash hf_jobs.sh YOU/REPO --config ..."}
shift
flavor=${FLAVOR:-a100x8}
timeout=${TIMEOUT:-24h}
gpus=${flavor##*x}; [[ $gpus =~ ^[0-9]+$ ]] || gpus=1
config=${CONFIG:-deepspeed_zero3}
judge=${JUDGE:-}

hf auth whoami >/dev/null || { echo "log in first: hf auth login, or HF_TOKEN" >&2; exit 2; }

run=("$@" --publish.repo_id "$repo" --publish.checkpoints true --output_dir /tmp/run)
if [[ $judge == start ]]; then
  packages=${PIP:-"hf-rlhf[deepspeed,vllm] hf-rlhf-refiner"}
  ((gpus == 8)) || { echo "JUDGE=start divides eight GPUs; $flavor has $gpus" >&2; exit 2; }
  start='hf-rlhf launch-configs one_node .; CONFIG=$1.yaml exec bash one_node.sh "${@:3}"'
else
  packages=${PIP:-"hf-rlhf[deepspeed] hf-rlhf-refiner"}
  [[ $judge ]] && run+=("--judges.${JUDGE_NAME:-judge}.base_url" "$judge")
  run+=(--expect_world_size "$gpus" --expect_distributed "${DISTRIBUTED:-DEEPSPEED}")
  start='hf-rlhf check "${@:3}"
    exec accelerate launch --config_file "$1.yaml" --num_processes "$2" -m hf_rlhf.train "${@:3}"'
fi

hf jobs run --flavor "$flavor" --timeout "$timeout" --secrets HF_TOKEN --detach \
  ${JOB_OPTIONS:-} "${IMAGE:-pytorch/pytorch:2.6.0-cuda12.4-cudnn9-devel}" \
  bash -c 'set -e; pip install -q $0; hf-rlhf launch-configs "$1" .; '"$start" \
  "$packages" "$config" "$gpus" "${run[@]}"
