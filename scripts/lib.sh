# Shared by the scripts: where we are, root or sudo, packages, the environment. Sourced, never run.
# shellcheck shell=bash
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=$ROOT/.venv
# What `space up` and the tests need from Debian; python3-venv makes the environment.
PACKAGES=(qemu-system-x86 lz4 zstd xz-utils mmdebstrap nftables btrfs-progs e2fsprogs busybox-static cpio iproute2 ca-certificates python3-venv)

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo -- "$@"
  else die "this needs root and there is no sudo; as root: $*"; fi
}

require_debian() {
  local id=unknown like=''
  if [ -r /etc/os-release ]; then id=$(. /etc/os-release && echo "$ID"); like=$(. /etc/os-release && echo "${ID_LIKE:-}"); fi
  case " $id $like " in *" debian "*|*" ubuntu "*) ;; *)
    die "this script knows Debian and Ubuntu only (here: $id). Install the equivalents of: ${PACKAGES[*]}, Python 3.11 or newer; then: python3 -m venv .venv, pip install --require-hashes -r requirements.lock, pip install --no-deps -e ." ;;
  esac
  [ "$(uname -m)" = x86_64 ] || die "only x86_64 is supported so far (here: $(uname -m))"
}

missing_packages() {
  local package
  for package in "${PACKAGES[@]}"; do
    dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || echo "$package"
  done
}

install_packages() {
  local missing; mapfile -t missing < <(missing_packages)
  [ ${#missing[@]} -eq 0 ] && return
  say "installing ${missing[*]}"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install --no-install-recommends -y -qq "${missing[@]}" >&2
}

# The environment is made again only when what it is made from has changed.
install_environment() {
  local stamp want
  want=$(cat "$ROOT/requirements.lock" "$ROOT/pyproject.toml" | sha256sum | cut -d' ' -f1)
  stamp=$VENV/installed-from
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ] && [ -x "$VENV/bin/space" ] && [ -x "$ROOT/src/space/_agent/space-agent" ]; then return; fi
  /usr/bin/python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "/usr/bin/python3 is older than 3.11"
  say "making $VENV"
  [ -x "$VENV/bin/python" ] || /usr/bin/python3 -m venv "$VENV"
  "$VENV/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r "$ROOT/requirements.lock"
  # Builds the guest agent with the Go compiler that the lock file brought.
  PATH="$VENV/bin:$PATH" "$VENV/bin/pip" install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e "$ROOT"
  echo "$want" >"$stamp"
}
