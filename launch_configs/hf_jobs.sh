#!/usr/bin/env bash
# Hugging Face Jobs: eight A100s for a day; checkpoints go to the Hub, for a job's disk is not kept.
# $ bash hf_jobs.sh YOU/REPO --plugin refiner_grpo --run published --attn_implementation sdpa
#
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
packages=${PIP:-"hf-rlhf[deepspeed] hf-rlhf-refiner"}

hf auth whoami >/dev/null || { echo "log in first: hf auth login, or HF_TOKEN" >&2; exit 2; }

run=("$@" --publish.repo_id "$repo" --publish.checkpoints true --output_dir /tmp/run)
run+=(--expect_world_size "$gpus" --expect_distributed "${DISTRIBUTED:-DEEPSPEED}")

hf jobs run --flavor "$flavor" --timeout "$timeout" --secrets HF_TOKEN --detach \
  ${JOB_OPTIONS:-} "${IMAGE:-pytorch/pytorch:2.6.0-cuda12.4-cudnn9-devel}" \
  bash -c 'set -e; pip install -q $0; hf-rlhf launch-configs "$1" .; hf-rlhf check "${@:3}"
    exec accelerate launch --config_file "$1.yaml" --num_processes "$2" -m hf_rlhf.train "${@:3}"' \
  "$packages" "$config" "$gpus" "${run[@]}"
