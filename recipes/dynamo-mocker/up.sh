#!/usr/bin/env bash
# Start a Dynamo deployment on 127.0.0.1: mocker engines behind the real frontend and KV router. No etcd, NATS or GPU.
#
#   up.sh               one prefill and one decode engine;  up.sh agg: one engine that does both
#
# Environment (defaults):
#   DIR (.work/dynamo)  where install.sh put it       RUN (DIR/run)  pids, logs, traces, recipe.toml of this one
#   P_SEQS (8)          slots of a prefill engine     PREFILLS (1)   how many, with ports from PREFILL_PORT up
#   D_SEQS (4)          slots of a decode engine      DECODES (1)    how many, with ports from DECODE_PORT up
#   KV_GB_S (4)         GB/s of a KV transfer, 0: none (each transfer has the link to itself)
#   MOCKER_ARGS         more arguments for every engine, e.g. "--speedup-ratio 0.5 --num-gpu-blocks-override 2000"
#   FRONTEND_ARGS       more arguments for the frontend;  ROUTER (kv): its --router-mode
#   FRONTEND_PORT (18100)  PREFILL_PORT (18110)  DECODE_PORT (18120)  BROKER_PORT (18190, and the next)
#   TRACE=1             ground truth: RUN/trace/requests.jsonl (a record a request) and
#                       RUN/trace/steps-NAME.*.jsonl.gz (what an engine ran and queued every 20 ms; whole after down.sh)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/../processes.sh"
mode=${1:-pd}
DIR=${DIR:-${PDBENCH_WORK:-$here/../../.work}/dynamo}
[ -f "$DIR/installed" ] || die "nothing installed in $DIR: run install.sh first, or set DIR"
DIR=$(cd "$DIR" && pwd)
PY=$DIR/venv/bin/python
RUN=${RUN:-$DIR/run}
P_SEQS=${P_SEQS:-8} D_SEQS=${D_SEQS:-4} PREFILLS=${PREFILLS:-1} DECODES=${DECODES:-1} KV_GB_S=${KV_GB_S:-4}
FRONTEND_PORT=${FRONTEND_PORT:-18100} PREFILL_PORT=${PREFILL_PORT:-18110} DECODE_PORT=${DECODE_PORT:-18120}
BROKER_PORT=${BROKER_PORT:-18190}
case $mode in
pd) decode_role=decode ;;
agg) decode_role=agg PREFILLS=0 DECODES=1 ;;
*) die "unknown mode $mode: pd or agg" ;;
esac

refuse_if_up
refuse_taken_port "$FRONTEND_PORT" FRONTEND_PORT
refuse_taken_port "$BROKER_PORT" BROKER_PORT
refuse_taken_port $((BROKER_PORT + 1)) BROKER_PORT
for ((n = 0; n < PREFILLS; n++)); do refuse_taken_port $((PREFILL_PORT + n)) PREFILL_PORT; done
for ((n = 0; n < DECODES; n++)); do refuse_taken_port $((DECODE_PORT + n)) DECODE_PORT; done
# Dynamo finds its parts through files; what a former deployment left there would still be routed to.
rm -rf "$RUN/discovery" "$RUN/trace"
mkdir -p "$RUN/discovery" "$RUN/trace"
rm -f "$RUN"/*.log "$RUN/recipe.toml"
RUN=$(cd "$RUN" && pwd)

export HF_HUB_OFFLINE=1 NO_COLOR=1 HOME=$DIR # the mocker keeps a model cache in ~/.cache/dynamo
export DYN_DISCOVERY_BACKEND=file DYN_FILE_KV=$RUN/discovery DYN_REQUEST_PLANE=tcp DYN_EVENT_PLANE=zmq
export DYN_TCP_RPC_HOST=127.0.0.1 DYN_HTTP_RPC_HOST=127.0.0.1 DYN_TCP_RESPONSE_STREAM_HOST=127.0.0.1
export DYN_SYSTEM_HOST=127.0.0.1 DYN_EVENT_PLANE_HOST=127.0.0.1
export DYN_ZMQ_BROKER_URL="xsub=tcp://127.0.0.1:$BROKER_PORT , xpub=tcp://127.0.0.1:$((BROKER_PORT + 1))"
export DYN_SYSTEM_USE_ENDPOINT_HEALTH_STATUS='["generate"]' # without it an engine's /health stays at 503
if [ -n "${TRACE:-}" ]; then
    export DYN_REQUEST_TRACE=1 DYN_REQUEST_TRACE_SINKS=file DYN_REQUEST_TRACE_FILE_FORMAT=jsonl
    export DYN_REQUEST_TRACE_FILE_PATH=$RUN/trace/requests.jsonl DYN_REQUEST_TRACE_FILE_FLUSH_INTERVAL_MS=200
    export DYN_FPM_TRACE=1 DYN_FPM_SAMPLE_INTERVAL_MS=20
fi

engine() { # NAME ROLE PORT SLOTS
    # shellcheck disable=SC2086
    DYN_SYSTEM_PORT=$3 DYN_FPM_OUTPUT_PATH=$RUN/trace/steps-$1.jsonl start "$1" "$PY" -m dynamo.mocker \
        --model-path "$DIR/model" --model-name mock-8b --disaggregation-mode "$2" --max-num-seqs "$4" \
        --kv-transfer-bandwidth "$KV_GB_S" ${MOCKER_ARGS:-}
}

server() { # ROLE PORT [SLOTS]: one entry of the recipe
    printf '\n[[server]]\nrole = "%s"\nurl = "http://127.0.0.1:%s"\n' "$1" "$2"
    if [ -n "${3:-}" ]; then printf 'max_num_seqs = %s\n' "$3"; fi
}

started=$SECONDS
start broker "$PY" "$here/broker.py" "$BROKER_PORT" $((BROKER_PORT + 1))
for ((n = 0; n < PREFILLS; n++)); do engine "prefill$n" prefill $((PREFILL_PORT + n)) "$P_SEQS"; done
for ((n = 0; n < DECODES; n++)); do engine "decode$n" "$decode_role" $((DECODE_PORT + n)) "$D_SEQS"; done
# shellcheck disable=SC2086
start frontend "$PY" -m dynamo.frontend --http-host 127.0.0.1 --http-port "$FRONTEND_PORT" \
    --router-mode "${ROUTER:-kv}" ${FRONTEND_ARGS:-}
for ((n = 0; n < PREFILLS; n++)); do wait_up "prefill$n" "http://127.0.0.1:$((PREFILL_PORT + n))/health" 90; done
for ((n = 0; n < DECODES; n++)); do wait_up "decode$n" "http://127.0.0.1:$((DECODE_PORT + n))/health" 90; done
wait_up frontend "http://127.0.0.1:$FRONTEND_PORT/v1/models" 90 '"mock-8b"'
# Listed is not yet routed: a request that came before the prefill engine is known would be prefilled by decode.
wait_up frontend "http://127.0.0.1:$FRONTEND_PORT/metrics" 90 'router_worker_registered{' $((PREFILLS + DECODES))

{
    printf '# Written by up.sh: what is running now.\n'
    printf 'name = "dynamo-mocker"\nengine = "dynamo"\nmodel = "mock-8b"\n'
    if [ "$mode" = agg ]; then
        printf 'mode = "colocated"\n'
        server colocated "$FRONTEND_PORT" "$D_SEQS"
        printf 'metrics_url = "http://127.0.0.1:%s/metrics"\n' "$DECODE_PORT" # the engine's page, not the frontend's
    else
        [ "$KV_GB_S" = 0 ] || printf 'link_gb_s = %s\n' "$KV_GB_S"
        server proxy "$FRONTEND_PORT"
        for ((n = 0; n < PREFILLS; n++)); do server prefill $((PREFILL_PORT + n)) "$P_SEQS"; done
        for ((n = 0; n < DECODES; n++)); do server decode $((DECODE_PORT + n)) "$D_SEQS"; done
    fi
} >"$RUN/recipe.toml"
echo "Dynamo ($mode, $PREFILLS + $DECODES) is up after $((SECONDS - started)) s: http://127.0.0.1:$FRONTEND_PORT"
echo "recipe of what is running: $RUN/recipe.toml"
