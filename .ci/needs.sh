#!/usr/bin/env bash
# Makes sure that what `make demo` or `make test` needs is installed. See `.ci/needs.sh help`.
set -euo pipefail

help() {
    cat <<TEXT
usage: .ci/needs.sh demo|test

Installs what is missing: as root or with sudo by apt-get, otherwise it prints the exact command and stops.
  demo   PostgreSQL's server programs, a Docker Engine, a static busybox, a C compiler
  test   the same, and pgbouncer, docker-registry, openssl, faketime and cargo-nextest
Nothing is started here; the demo and the tests start and stop their own services.
TEXT
}

fail() { printf '.ci/needs.sh: %s\n' "$*" >&2; exit 1; }

has() { PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null 2>&1; }

has_postgres() {
    [ -x "${PGBIN:-/nonexistent}/initdb" ] || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || { has initdb && has postgres; }
}

# One that answers will do, wherever its daemon is.
has_docker() { has dockerd || { has docker && docker info >/dev/null 2>&1; }; }

# The demo puts it into an image of its own: a dynamic one would not run there.
has_busybox() { has busybox && ! ldd "$(command -v busybox)" >/dev/null 2>&1; }

need() {
    packages=()
    has_postgres || packages+=(postgresql)
    # The tests start engines of their own; the demo is content with any that answers.
    if [ "$1" = demo ]; then has_docker || packages+=(docker.io); else has dockerd || packages+=(docker.io); fi
    has_busybox || packages+=(busybox-static)
    has cc || packages+=(gcc libc6-dev)
    [ "$1" = demo ] || has pgbouncer || packages+=(pgbouncer)
    [ "$1" = demo ] || has setpriv || packages+=(util-linux)
    [ "$1" = demo ] || has docker-registry || packages+=(docker-registry)
    [ "$1" = demo ] || compgen -G '/usr/lib/*/faketime/libfaketimeMT.so.1' >/dev/null || packages+=(faketime)
    [ "$1" = demo ] || has openssl || packages+=(openssl)
    [ "$1" = demo ] || has faketime || packages+=(faketime)
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif sudo -n true 2>/dev/null; then sudo -n "$@"
    elif has sudo && [ -t 0 ]; then sudo "$@"
    else return 125; fi
}

install_packages() {
    local command="apt-get update && apt-get install -y --no-install-recommends ${packages[*]}"
    has apt-get || fail "missing: ${packages[*]} (names of Debian's packages); install them with this system's own tools"
    printf 'Installing %s\n' "${packages[*]}"
    # Debian's package would make and start a cluster of its own, which nobody here asked for.
    local settings=/etc/postgresql-common/createcluster.conf
    as_root sh -c "
        set -e
        export DEBIAN_FRONTEND=noninteractive
        if [ ! -e $settings ]; then mkdir -p ${settings%/*} && echo 'create_main_cluster = false' >$settings; fi
        apt-get update -qq </dev/null
        apt-get install -y -qq --no-install-recommends -o Dpkg::Options::=--force-confold ${packages[*]} </dev/null >/dev/null
    " || {
        code=$?
        [ "$code" = 125 ] && fail "missing: ${packages[*]}; run this as root, then try again: $command"
        fail "could not install ${packages[*]}; run this as root to see why: $command"
    }
}

case ${1:-help} in
demo | test) ;;
help | --help | -h) help; exit ;;
*) help >&2; exit 2 ;;
esac

has cargo || [ ! -x "$HOME/.cargo/bin/cargo" ] || PATH=$PATH:$HOME/.cargo/bin
has cargo || fail "no cargo: install Rust (1.95 or newer), then try again"
need "$1"
if [ ${#packages[@]} -gt 0 ]; then
    install_packages
    need "$1"
    [ ${#packages[@]} = 0 ] || fail "still missing after the installation: ${packages[*]}"
fi
if [ "$1" = test ] && ! cargo nextest --version >/dev/null 2>&1; then
    echo "Installing cargo-nextest"
    cargo install --locked --quiet cargo-nextest </dev/null
fi
