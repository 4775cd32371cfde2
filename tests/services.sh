#!/usr/bin/env bash
# The services that the integration tests need: one private PostgreSQL cluster and two private Docker engines.
# Nothing of the machine's own PostgreSQL or Docker is touched. See `tests/services.sh help`.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
me=$here/tests/services.sh
# One set of services per work tree and user; short, since a unix socket's path may have 107 bytes.
dir=${LEASEHOLD_TEST_DIR:-/tmp/leasehold-test-$(id -u)-$(printf %s "$here" | cksum | cut -d' ' -f1)}
idle_limit=${LEASEHOLD_TEST_IDLE_SECONDS:-600}

help() {
    cat <<TEXT
usage: tests/services.sh run -- COMMAND...   start what is missing, run COMMAND with it, stop everything
       tests/services.sh start               start what is missing (safe to repeat, also at the same time)
       tests/services.sh env                 print LEASEHOLD_TEST_...=... lines; fails when not running
       tests/services.sh stop                stop everything and remove its files
       tests/services.sh status              say what runs

  make test calls:            tests/services.sh run -- cargo nextest run --test it
  a developer may just call:  cargo nextest run --test it -E 'test(docker::)'
                              the tests start the services themselves; they end after $idle_limit s without a test
                              (LEASEHOLD_TEST_IDLE_SECONDS), or by 'tests/services.sh stop'

The environment that the tests read (a variable that is set already is kept, and its service is not started):
  LEASEHOLD_TEST_DATABASE_URL   a superuser's URL of the cluster
  LEASEHOLD_TEST_DOCKER_1, _2   two engines, such as unix:///…/1.sock
Files, logs and sockets are in $dir (LEASEHOLD_TEST_DIR).
Needs: dockerd, busybox (static), PostgreSQL's server binaries; Docker needs root or password-less sudo.
TEXT
}

fail() { printf 'tests/services.sh: %s\n' "$*" >&2; exit 1; }

# A zombie answers to kill -0, so ask /proc.
alive() { [ -n "${1:-}" ] && [ -r "/proc/$1/stat" ] && ! grep -qE '^[0-9]+ \(.*\) Z' "/proc/$1/stat"; }

privileged() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }

# For daemons in the background: the daemon itself must be the child, since signals go to it.
exec_privileged() { if [ "$(id -u)" = 0 ]; then exec "$@"; else exec sudo -n "$@"; fi; }

running() { [ -s "$dir/env" ] && alive "$(cat "$dir/keeper.pid" 2>/dev/null)"; }

# --- what the keeper does ---------------------------------------------------------------------------

pg_bin() {
    local found
    found=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -1)
    [ -n "$found" ] || found=$(dirname "$(command -v postgres)" 2>/dev/null) || true
    [ -x "$found/initdb" ] || fail "no PostgreSQL server binaries: install the package postgresql"
    printf %s "$found"
}

# PostgreSQL refuses to run as root.
as_database_user() {
    if [ "$(id -u)" = 0 ]; then
        local user=postgres
        id -u postgres >/dev/null 2>&1 || user=nobody
        exec setpriv --reuid="$user" --regid="$(id -g "$user")" --init-groups "$@"
    fi
    exec "$@"
}

free_port() {
    local port
    for _ in $(seq 50); do
        port=$((20000 + RANDOM % 12000))
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { printf %s "$port"; return; }
    done
    fail "found no free port"
}

start_postgres() {
    local bin port
    bin=$(pg_bin)
    port=$(free_port)
    mkdir -p "$dir/pg"
    if [ "$(id -u)" = 0 ]; then
        id -u postgres >/dev/null 2>&1 && chown postgres "$dir/pg" || chown nobody "$dir/pg"
    fi
    (cd "$dir/pg" && as_database_user "$bin/initdb" -D "$dir/pg/data" -U postgres -A trust -E UTF8 --locale=C.UTF-8 --no-sync \
        >"$dir/initdb.log" 2>&1) || fail "initdb failed: $(tail -3 "$dir/initdb.log")"
    # fsync is off: the tests kill servers, never the machine.
    (cd "$dir/pg" && as_database_user "$bin/postgres" -D "$dir/pg/data" -p "$port" -k "$dir/pg" \
        -c listen_addresses=127.0.0.1 -c max_connections=1000 -c fsync=off -c full_page_writes=off \
        -c shared_buffers=256MB -c max_wal_size=2GB -c wal_level=replica -c max_prepared_transactions=0 \
        -c log_min_messages=warning -c log_line_prefix='%m [%p] %a ' \
        >"$dir/postgres.log" 2>&1) &
    pids+=($!)
    for _ in $(seq 300); do
        "$bin/pg_isready" -q -h "$dir/pg" -p "$port" && break
        alive "$!" || fail "PostgreSQL did not start: $(tail -3 "$dir/postgres.log")"
        sleep 0.1
    done
    printf 'LEASEHOLD_TEST_DATABASE_URL=postgres://postgres@127.0.0.1:%s/postgres\n' "$port" >>"$dir/env.new"
}

# Own containerd namespaces: a machine-wide containerd, if one runs, is shared without being mixed up.
# No bridge, no iptables: the machine's network stays as it is; tests run their containers with network none.
start_engine() {
    local n=$1 dockerd key='{}'
    dockerd=$(PATH=$PATH:/usr/sbin:/sbin command -v dockerd) || fail "no dockerd: install the package docker.io"
    mkdir -p "$dir/engine$n"
    # The machine's own /etc/docker/daemon.json is not meant for this one.
    # Before 24 an engine's id is made of a machine-wide key: two engines would bear the same.
    if [ "$("$dockerd" --version | grep -oE '[0-9]+' | head -1)" -lt 24 ]; then key="{\"deprecated-key-path\": \"$dir/engine$n/key.json\"}"; fi
    printf '%s\n' "$key" >"$dir/engine$n/daemon.json"
    exec_privileged env PATH="$PATH:/usr/sbin:/sbin" "$dockerd" \
        --data-root "$dir/engine$n/data" --exec-root "$dir/engine$n/exec" --pidfile "$dir/engine$n/pid" \
        -H "unix://$dir/$n.sock" --group "$(id -gn)" --config-file "$dir/engine$n/daemon.json" \
        --containerd-namespace "leasehold-test-$n" --containerd-plugins-namespace "leasehold-test-$n-plugins" \
        --bridge none --iptables=false --ip-forward=false --ip-masq=false --userland-proxy=false \
        --shutdown-timeout 5 --log-level warn >"$dir/engine$n.log" 2>&1 &
    pids+=($!)
    engines+=("$n:$!")
    printf 'LEASEHOLD_TEST_DOCKER_%s=unix://%s\n' "$n" "$dir/$n.sock" >>"$dir/env.new"
}

await_engine() {
    local n=${1%%:*} pid=${1##*:}
    for _ in $(seq 300); do
        # dockerd makes its socket last; a connection is what proves that it listens.
        [ -S "$dir/$n.sock" ] && grep -qF "$dir/$n.sock" /proc/net/unix && return
        alive "$pid" || fail "Docker engine $n did not start: $(tail -3 "$dir/engine$n.log")"
        sleep 0.1
    done
    fail "Docker engine $n did not listen within 30 s; see $dir/engine$n.log"
}

keeper() {
    pids=() engines=()
    trap 'trap "" TERM INT HUP; take_down; exit 0' TERM INT HUP
    printf %s "$$" >"$dir/keeper.pid"
    : >"$dir/env.new"
    # A keeper that fails takes down what it has started.
    trap 'code=$?; trap "" TERM INT HUP; [ "$code" = 0 ] || take_down keep-logs; exit "$code"' EXIT
    [ -n "${LEASEHOLD_TEST_DOCKER_1:-}" ] || start_engine 1
    [ -n "${LEASEHOLD_TEST_DOCKER_2:-}" ] || start_engine 2
    [ -n "${LEASEHOLD_TEST_DATABASE_URL:-}" ] || start_postgres
    local e
    for e in ${engines[@]+"${engines[@]}"}; do await_engine "$e"; done
    mv "$dir/env.new" "$dir/env"
    # Every test process holds the lock `in-use` shared; when nobody does for long enough, end.
    local idle=0
    while [ "$idle" -lt "$idle_limit" ]; do
        sleep 5 & wait $! || true
        if flock -n -x "$dir/in-use" true; then idle=$((idle + 5)); else idle=0; fi
    done
    take_down
}

take_down() {
    rm -f "$dir/env"
    local pid
    for pid in ${pids[@]+"${pids[@]}"}; do kill -INT "$pid" 2>/dev/null || privileged kill -INT "$pid" 2>/dev/null || true; done
    for pid in ${pids[@]+"${pids[@]}"}; do wait "$pid" 2>/dev/null || true; done
    clean "${1:-}"
}

# Also after a SIGKILL of everything.
clean() {
    local pid
    pid=$(head -1 "$dir/pg/data/postmaster.pid" 2>/dev/null) || pid=
    if [ -n "$pid" ] && grep -qa postgres "/proc/$pid/cmdline" 2>/dev/null; then privileged kill -QUIT "$pid" 2>/dev/null || true; fi
    if [ "${1:-}" = keep-logs ]; then
        sweep "$dir" "$dir"/engine[0-9] "$dir/p" "$dir/pg" "$dir/keeper.pid"
    else
        sweep "$dir" "$dir"
    fi
}

# sweep ROOT PATH...: ends every daemon under ROOT by its pid file, unmounts what is mounted there, removes PATHs.
sweep() {
    local root=$1 file pid
    shift
    # `p` holds the engines that single tests start for themselves.
    for file in "$root"/{,engine*/,p/*/}{pid,exec/containerd/containerd.pid}; do
        pid=$(cat "$file" 2>/dev/null) || continue
        if grep -qaE 'dockerd|containerd' "/proc/$pid/cmdline" 2>/dev/null; then
            privileged kill -KILL "$pid" 2>/dev/null || true
        fi
    done
    # Shims outlive a killed containerd, and their containers them; they carry our exec root in their arguments.
    for pid in $(grep -laF "$root/" /proc/[0-9]*/cmdline 2>/dev/null | cut -d/ -f3); do
        if grep -qa containerd-shim "/proc/$pid/cmdline" 2>/dev/null; then
            for child in $(cat "/proc/$pid/task/$pid/children" 2>/dev/null); do privileged kill -KILL "$child" 2>/dev/null || true; done
            privileged kill -KILL "$pid" 2>/dev/null || true
        fi
    done
    for _ in $(seq 50); do
        awk -v d="$root/" 'index($2, d) == 1 { print $2 }' /proc/self/mounts | sort -r | while read -r mount; do
            privileged umount -l "$mount" 2>/dev/null || true
        done
        privileged rm -rf "$@" 2>/dev/null && return
        sleep 0.1
    done
    fail "could not remove $*: something still uses it"
}

# --- commands ---------------------------------------------------------------------------------------

# Callers of start and stop wait for each other.
exclusively() { exec 8>"$dir.lock"; flock 8; }

start() {
    exclusively
    if ! running; then
        [ -e "$dir" ] && clean
        mkdir -p "$dir"
        chmod 711 "$dir"
        : >"$dir/in-use"
        # All descriptors away: a caller that reads our output must not wait for the keeper.
        setsid "$me" _keeper </dev/null >"$dir/keeper.log" 2>&1 8>&- 9>&- &
        local child=$!
        for _ in $(seq 900); do
            running && break
            alive "$child" || fail "$(cat "$dir/keeper.log" 2>/dev/null || echo 'the keeper ended')"
            sleep 0.1
        done
        running || fail "not up within 90 s; see $dir"
    fi
    exec 8>&-
}

stop() {
    exclusively
    local pid
    pid=$(cat "$dir/keeper.pid" 2>/dev/null) || pid=
    if alive "$pid" && grep -qa services.sh "/proc/$pid/cmdline"; then
        kill -TERM "$pid"
        for _ in $(seq 300); do alive "$pid" || break; sleep 0.1; done
        alive "$pid" && kill -KILL "$pid"
    fi
    [ ! -e "$dir" ] || clean
    exec 8>&-
}

environment() {
    running || fail "not running; tests/services.sh start"
    local name
    for name in LEASEHOLD_TEST_DATABASE_URL LEASEHOLD_TEST_DOCKER_1 LEASEHOLD_TEST_DOCKER_2; do
        if [ -n "${!name:-}" ]; then printf '%s=%s\n' "$name" "${!name}"; else grep "^$name=" "$dir/env" || true; fi
    done
    printf 'LEASEHOLD_TEST_IN_USE=%s\n' "$dir/in-use"
}

case ${1:-help} in
run)
    shift
    [ "${1:-}" = -- ] && shift
    [ $# -gt 0 ] || fail "run what? tests/services.sh run -- COMMAND..."
    start
    trap stop EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    # Held through the whole command, builds included.
    exec 9<"$dir/in-use"
    flock -s 9
    set -a
    eval "$(environment | sed "s/=\(.*\)/='\1'/")"
    set +a
    "$@" 9<&-
    ;;
start) start && environment ;;
env) environment ;;
stop) stop ;;
status) if running; then cat "$dir/env"; else echo "not running"; fi ;;
_keeper) keeper ;;
_sweep) sweep "$2" "$2" ;;
help | --help | -h) help ;;
*) help >&2; exit 2 ;;
esac
