#!/usr/bin/env bash
# Runs `leasehold dev --demo`. Where no Docker engine answers us, and we are not root but may use sudo, a private
# engine is started with it and stopped at the end; as root, `leasehold dev` does that itself.
set -euo pipefail

program=$1
shift
socket=${RUNTIME_DOCKER_ENDPOINT:-unix:///var/run/docker.sock}
socket=${socket#unix://}

answers() { [[ $socket = /* ]] && [ -S "$socket" ] && [ -r "$socket" ] && [ -w "$socket" ]; }

if [ "$(id -u)" = 0 ] || [ -n "${RUNTIME_DOCKER_ENDPOINT:-}" ] || answers || ! sudo -n true 2>/dev/null; then
    exec "$program" dev --demo "$@"
fi

dir=$(mktemp -d /tmp/leasehold-demo-XXXXXX)
engine=
stop() {
    trap '' INT TERM
    [ -z "$engine" ] || { sudo -n kill -TERM "$engine" 2>/dev/null || true; wait "$keeper" 2>/dev/null || true; }
    sudo -n rm -rf "$dir"
}
trap stop EXIT
sudo -n env PATH="$PATH:/usr/sbin:/sbin" setsid dockerd --data-root "$dir/data" --exec-root "$dir/exec" --pidfile "$dir/pid" \
    -H "unix://$dir/docker.sock" --group "$(id -gn)" --bridge none --iptables=false --ip-forward=false --ip-masq=false \
    --log-level warn >"$dir/log" 2>&1 &
keeper=$!
for _ in $(seq 300); do
    [ -S "$dir/docker.sock" ] && break
    kill -0 "$keeper" 2>/dev/null || { tail -3 "$dir/log" >&2; exit 1; }
    sleep 0.1
done
engine=$(sudo -n cat "$dir/pid")
# Ctrl-C reaches the program too; we wait for it and clean up after it.
trap : INT TERM
code=0
RUNTIME_DOCKER_ENDPOINT="unix://$dir/docker.sock" "$program" dev --demo "$@" || code=$?
exit "$code"
