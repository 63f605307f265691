# Shared by the up and down scripts: start processes, wait for them, end exactly those. Linux. Sourced, not run.
# The caller sets RUN: a folder that keeps NAME.pid ("pid starttime") and NAME.log of each process.
# shellcheck shell=bash

die() { echo "${0##*/}: $*" >&2; exit 1; }

# Use PYTHON, else python3.11, else python3; refuse one that is too old.
find_python() {
    local found
    found=$(command -v "${PYTHON:-python3.11}" || command -v "${PYTHON:-python3}") ||
        die "no ${PYTHON:-python3} on PATH: set PYTHON"
    "$found" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "$found is older than 3.11: set PYTHON"
    "$found" -c 'import ensurepip, venv' 2>/dev/null || die "$found has no venv (Debian: apt install python3-venv)"
    echo "$found"
}

# A pid may be used again by a stranger: the start time tells them apart.
start_time() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }

is_ours() { # PIDFILE: the process that we started is still there
    local pid born
    read -r pid born <"$1" 2>/dev/null && [ "$(start_time "$pid")" = "$born" ]
}

refuse_if_up() {
    local file
    for file in "$RUN"/*.pid; do
        if [ -f "$file" ] && is_ours "$file"; then die "already up (${file##*/} in $RUN): run down.sh first"; fi
    done
}

refuse_taken_port() { # PORT VARIABLE
    if (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; then die "port $1 is taken: free it or set $2"; fi
}

start() { # NAME COMMAND...: in a session of its own, so that its children can be ended with it
    local name=$1
    shift
    setsid "$@" >"$RUN/$name.log" 2>&1 </dev/null &
    echo "$! $(start_time $!)" >"$RUN/$name.pid"
}

# Wait until URL answers 200 and has TEXT in it TIMES times; give up when the process dies.
wait_up() { # NAME URL SECONDS [TEXT [TIMES]]
    local name=$1 deadline=$((SECONDS + $3))
    until "$PY" -c 'import sys, urllib.request
page = urllib.request.urlopen(sys.argv[1], timeout=5).read().decode()
sys.exit(page.count(sys.argv[2]) < int(sys.argv[3]))' "$2" "${4:-}" "${5:-1}" 2>/dev/null; do
        if ! is_ours "$RUN/$name.pid"; then
            # The first Python error is the cause; what follows are the processes that waited for the first.
            grep -m 1 -E '^[A-Za-z.]*(Error|Exception): ' "$RUN/$name.log" >&2 || tail -n 20 "$RUN/$name.log" >&2
            die "$name ended while starting: see $RUN/$name.log (down.sh ends the others)"
        fi
        [ "$SECONDS" -lt "$deadline" ] || die "no answer from $name at $2 in $3 s: see $RUN/$name.log (down.sh ends it)"
        sleep 1
    done
}

# The living processes of the session that PID leads or led: it may have died before its children.
session() { # PID
    { cat /proc/[0-9]*/stat 2>/dev/null || true; } |
        awk -v leader="$1" '{ id = $1; sub(/.*\) /, ""); if ($4 == leader && $1 !~ /[ZX]/) print id }'
}

left() { # PIDFILE: what still lives of a process that we started; nothing when a stranger has its pid
    local pid born
    read -r pid born <"$1"
    if [ ! -d "/proc/$pid" ] || [ "$(start_time "$pid")" = "$born" ]; then session "$pid"; fi
}

stop_all() { # every process in RUN: TERM, 15 s of grace, then KILL to what is left of its session
    local file pid waited=0
    for file in "$RUN"/*.pid; do
        if [ -f "$file" ] && is_ours "$file"; then
            read -r pid _ <"$file"
            kill -TERM "$pid" 2>/dev/null || true
        fi
    done
    for file in "$RUN"/*.pid; do
        [ -f "$file" ] || continue
        while [ -n "$(left "$file")" ] && [ "$waited" -lt 30 ]; do
            sleep 0.5
            waited=$((waited + 1))
        done
        for pid in $(left "$file"); do
            echo "${file##*/}: killed process $pid" >&2
            kill -KILL "$pid" 2>/dev/null || true
        done
        rm -f "$file"
    done
}
