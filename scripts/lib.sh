# Shared by the scripts: steps that say what they do and how long it took.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${ZEROSHARP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/zerosharp}
torch_version=2.11.0

# step "what" command…: runs the command, its output in a log that is shown if it fails.
step() {
  local what=$1 start log status=0
  shift
  start=$(date +%s)
  log=$(mktemp)
  printf '%s … ' "$what"
  "$@" >"$log" 2>&1 &  # not as part of a list, so that errexit holds inside functions
  wait $! || status=$?
  if [ "$status" -ne 0 ]; then
    printf 'FAILED\n'
    tail -n 40 "$log" >&2
    rm -f "$log"
    printf 'zerosharp: the step "%s" failed (exit code %s); run the same command again once the cause is gone.\n' \
      "$what" "$status" >&2
    exit 1
  fi
  rm -f "$log"
  printf 'done in %s s\n' "$(($(date +%s) - start))"
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

# toolkit: a CUDA toolkit with cuDNN and NCCL is here; slim: neither toolkit nor GPU; full: a GPU
# with its driver only. ZEROSHARP_LIBTORCH overrides the choice.
libtorch_kind() {
  if [ -n "${ZEROSHARP_LIBTORCH:-}" ]; then
    echo "$ZEROSHARP_LIBTORCH"
  elif command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
    echo toolkit
  elif [ -e /dev/nvidiactl ]; then
    echo full
  else
    echo slim
  fi
}

venv_of() { echo "$cache/libtorch-$torch_version-$1"; }

# The torch/ folder inside a virtual environment.
torch_folder() { echo "$1"/lib/python3*/site-packages/torch; }
