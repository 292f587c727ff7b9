#!/usr/bin/env bash
# Set up what is missing, then do what was asked. `./run.sh help` lists it. Works from any directory.
set -euo pipefail

here="$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}" 2>/dev/null || echo "${BASH_SOURCE[0]}")")" && pwd)"
venv="$here/.venv"
# Unset means the first GPU; an empty value is kept, and hides all of them.
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES-0}"

say() { printf '%s\n' "$*" >&2; }
fail() { say "run.sh: $*"; exit 1; }

# step COMMAND...: run it so that a signal to this script ends it too. Bash would wait for it first, or leave it behind.
child=""
step() {
    local status=0
    "$@" &
    child=$!
    wait "$child" || status=$?
    child=""
    return "$status"
}
stop() {
    trap - INT TERM HUP
    if [[ -n "$child" ]]; then
        kill "$child" 2>/dev/null || true
        wait "$child" 2>/dev/null || true
    fi
    say "run.sh: stopped."
    exit "$1"
}
trap 'stop 130' INT
trap 'stop 143' TERM
trap 'stop 129' HUP

usage() {
    cat <<'USAGE'
./run.sh [OPTIONS]        set up if needed and serve on http://127.0.0.1:7860; OPTIONS go to app.py (--help lists them)
./run.sh setup            only set up: virtual environment, requirements, model files
./run.sh test [OPTIONS]   set up and run the tests; OPTIONS go to pytest (-m "not slow" for the quick ones)
./run.sh bench ...        set up and run a benchmark
./run.sh help             this text

PYTHON=/path/to/python3.12 ./run.sh   use that Python (3.10 to 3.13) instead of the first one found
CUDA_VISIBLE_DEVICES=1 ./run.sh       use another GPU (default 0)
USAGE
}

suits() {
    command -v "$1" >/dev/null 2>&1 &&
        "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null
}

find_python() {
    local candidate
    if [[ -n "${PYTHON:-}" ]]; then
        suits "$PYTHON" || fail "PYTHON=$PYTHON is not a working Python 3.10 to 3.13."
        echo "$PYTHON"
        return
    fi
    for candidate in python3 python3.12 python3.11 python3.13 python3.10 python; do
        if suits "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    fail "Python 3.10 to 3.13 is needed, and this machine has $(python3 --version 2>/dev/null || echo none).
Install one (Debian, Ubuntu: apt-get install python3 python3-venv; macOS: brew install python@3.12; or python.org),
or name one: PYTHON=/path/to/python3.12 ./run.sh"
}

make_venv() {
    local python
    if [[ -x "$venv/bin/python" ]] && suits "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        return
    fi
    python="$(find_python)"
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$python lacks the venv module. Install it (Debian, Ubuntu: apt-get install python3-venv) and run this again."
    say "Making the virtual environment .venv with $("$python" --version) ..."
    step "$python" -m venv --clear "$venv" || fail "the virtual environment could not be made in $venv."
}

# install FILE: requirements of FILE, only when FILE or the Python changed since the last complete install.
install() {
    local stamp="$venv/.installed-$1" want
    want="$("$venv/bin/python" - "$here/$1" <<'PY'
import hashlib, pathlib, sys
print(sys.version.split()[0], hashlib.sha256(pathlib.Path(sys.argv[1]).read_bytes()).hexdigest())
PY
)"
    if [[ -f "$stamp" && "$(cat "$stamp")" == "$want" ]]; then
        return
    fi
    say "Installing $1 (the first time this takes some minutes) ..."
    step "$venv/bin/python" -m pip install --disable-pip-version-check --prefer-binary -r "$here/$1" >&2 ||
        fail "installing $1 failed; the lines above say why. Without network or behind a proxy, see README.md, \"Installing\"."
    printf '%s\n' "$want" > "$stamp"
}

fetch_assets() {
    step "$venv/bin/python" -m cosyvoice_app assets fetch >&2 || fail "the model files are not all here; see the message above."
}

# set_up FILE...: everything up to date. One at a time where flock exists.
set_up() {
    local file
    if command -v flock >/dev/null 2>&1; then
        exec 9> "$here/.setup.lock"
        flock 9
    fi
    make_venv
    for file in "$@"; do install "$file"; done
    [[ -n "${skip_assets:-}" ]] || fetch_assets
    exec 9>&- || true
}

needs_assets() {
    # Only the lite engine (also behind "auto") uses them.
    local previous="" option engine="${COSYVOICE_ENGINE:-auto}"
    for option in "$@"; do
        [[ "$option" == --engine=* ]] && engine="${option#--engine=}"
        [[ "$previous" == --engine ]] && engine="$option"
        previous="$option"
    done
    [[ "$engine" == auto || "$engine" == lite ]]
}

cd "$here"
case "${1:-}" in
    help)
        usage
        ;;
    setup)
        set_up requirements.txt
        say "Ready: ./run.sh serves on http://127.0.0.1:7860"
        ;;
    test)
        shift
        set_up requirements.txt requirements-dev.txt
        exec "$venv/bin/python" -m pytest "$@"
        ;;
    bench)
        shift
        set_up requirements.txt
        exec "$venv/bin/python" -m cosyvoice_app bench "$@"
        ;;
    "" | -*)
        needs_assets "$@" || skip_assets=1
        [[ " $* " != *" --help "* && " $* " != *" -h "* ]] || skip_assets=1
        set_up requirements.txt
        exec "$venv/bin/python" app.py "$@"
        ;;
    *)
        usage >&2
        fail "there is no command \"$1\"."
        ;;
esac
