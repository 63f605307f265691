#!/usr/bin/env bash
# Install NVIDIA Dynamo's frontend, KV router and mocker engines, and make a model directory without weights.
#
#   install.sh          Environment: DIR (default .work/dynamo in the checkout), PYTHON (python3.11, else python3)
#
# Takes half a minute and 310 MB; run again, it returns at once.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/../processes.sh"
DIR=${DIR:-${PDBENCH_WORK:-$here/../../.work}/dynamo}
mkdir -p "$DIR"
DIR=$(cd "$DIR" && pwd)
PY=$DIR/venv/bin/python

wanted=$(cat "$here/requirements.lock" "$here/../tiny_model.py" | sha256sum)
if [ "$(cat "$DIR/installed" 2>/dev/null)" != "$wanted" ]; then
    [ "$(uname -s)" = Linux ] || die "Dynamo's runtime has wheels for Linux only, this is $(uname -s)"
    [ -x "$PY" ] || "$(find_python)" -m venv "$DIR/venv"
    "$PY" -m pip install --quiet --no-deps --disable-pip-version-check -r "$here/requirements.lock"
    "$PY" "$here/../tiny_model.py" "$DIR/model" --shape llama-8b
    echo "$wanted" >"$DIR/installed"
fi
echo "Dynamo is in $DIR"
