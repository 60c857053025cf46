#!/bin/sh
# Creates the environment that `make env` promises. Each check names its remedy before minutes are spent.
set -eu

fail() { echo "tierserve: $1" >&2; exit 1; }

# python3.11 by that name, or a python3 that is one.
command -v "$PYTHON" >/dev/null 2>&1 || PYTHON=python3
command -v "$PYTHON" >/dev/null 2>&1 || fail "Python 3.11 is not installed (or say make PYTHON=/path/to/python3.11)"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' ||
    fail "Python 3.11 is needed, $PYTHON is $("$PYTHON" -V 2>&1 | cut -d' ' -f2): install it, or say make PYTHON=/path/to/python3.11"
"$PYTHON" -c 'import venv, ensurepip' 2>/dev/null || fail "Python's venv module is missing: install python3.11-venv"
[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] ||
    fail "the CPU profile is for Linux on x86-64, this is $(uname -s) on $(uname -m)"
grep -qw avx2 /proc/cpuinfo || fail "vLLM's CPU build needs AVX2, which this CPU lacks"
free_kb=$(df -Pk . | awk 'NR==2 {print $4}')
[ "$free_kb" -gt 8000000 ] || [ -d "$VENV" ] ||
    fail "$(pwd) has $((free_kb / 1024)) MiB free, the environment needs 8 GB: free some, or clone to another disk"

[ -x "$VENV/bin/python" ] || { echo "Creating $VENV ..."; "$PYTHON" -m venv "$VENV"; }
pip="$VENV/bin/python -m pip --disable-pip-version-check"
$pip install -q "pip==26.3" 2>/dev/null || $pip install -q "pip==26.3"

log="$VENV/install.log"
run_pip() { $pip "$@" >"$log" 2>&1 || { tail -n 15 "$log" >&2; fail "pip failed; its whole output is in $log"; }; }

extra=""
$pip install -q --dry-run --no-deps "$(grep '^torch==' "$LOCK")" >/dev/null 2>&1 ||
    extra="--extra-index-url $TORCH_CPU_INDEX"
echo "Installing $(grep -c == "$LOCK") pinned packages (minutes, once) ..."
# shellcheck disable=SC2086
run_pip install --no-deps $extra -r "$LOCK"
run_pip install --no-deps --no-build-isolation -e .
"$VENV/bin/python" -c 'import torch, vllm, ray, lmcache' >"$log" 2>&1 || { tail -n 5 "$log" >&2; fail "the installation is not complete"; }
