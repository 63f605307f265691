#!/usr/bin/env bash
# End the deployment that up.sh started, and nothing else.    Environment: DIR (.work/dynamo), RUN (DIR/run)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/../processes.sh"
DIR=${DIR:-${PDBENCH_WORK:-$here/../../.work}/dynamo}
RUN=${RUN:-$DIR/run}
stop_all
