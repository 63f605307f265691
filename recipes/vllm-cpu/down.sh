#!/usr/bin/env bash
# End what up.sh started, and nothing else.
#
#   down.sh [pull | push | single]      without a word: all of them
#                                       Environment: DIR (.work/vllm-cpu), RUN as for up.sh
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/../processes.sh"
DIR=${DIR:-${PDBENCH_WORK:-$here/../../.work}/vllm-cpu}
if [ -n "${RUN:-}" ]; then
    stop_all
elif [ -n "${1:-}" ]; then
    RUN=$DIR/run/$1 && stop_all
else
    for RUN in "$DIR"/run/*/; do stop_all; done
fi
