#!/bin/sh
# Starts or continues the run of one plan on the Ray cluster that RAY_ADDRESS names:
#
#   train.sh PLAN OUT [options of rlplan execute]
#
# A job that is queued or created again comes here again, so this decides between a start and --resume. PLAN, OUT and
# all files that the plan names must lie where every node reads them under the same path.
set -eu
if [ $# -lt 2 ]; then
  echo "train.sh: write train.sh PLAN OUT [options of rlplan execute]" >&2
  exit 2
fi
if [ -z "${RAY_ADDRESS:-}" ]; then
  echo "train.sh: RAY_ADDRESS names no Ray cluster; without it the run would take this one machine" >&2
  exit 2
fi
plan=$1 out=$2
shift 2

resume=
for checkpoint in "$out"/checkpoints/*step-*; do
  if [ -e "$checkpoint" ]; then
    resume=--resume
  fi
done

# shellcheck disable=SC2086 # an empty $resume is no argument
rlplan execute "$plan" --out "$out" $resume --dry-run
# exec: signals reach the run itself, which ends at its round's end, with a checkpoint.
# shellcheck disable=SC2086
exec rlplan execute "$plan" --out "$out" $resume "$@"
