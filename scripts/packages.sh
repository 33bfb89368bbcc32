# scripts/packages.sh: installs missing packages, for ./quickstart and ./check,
# which source it.
#
# It searches tools in PATH and libraries by pkg-config. If nothing is missing
# it does nothing, and needs no rights. It works as root or through sudo, and
# never asks a question.
# SPDX-License-Identifier: MIT
# shellcheck shell=sh

missing=''     # packages
missing_why='' # one phrase each

# need_tool COMMAND PACKAGE REASON
need_tool()
{
    command -v "$1" >/dev/null 2>&1 || want "$2" "$3"
}

# need_library MODULE PACKAGE REASON: MODULE as pkg-config knows it
need_library()
{
    pkg-config --exists "$1" 2>/dev/null || want "$2" "$3"
}

want()
{
    missing="$missing $1"
    missing_why="$missing_why$1 ($2), "
}

# Packages to build the library and the programs: tools, then libraries.
need_build()
{
    need_build_tools
    need_build_libraries
}

need_build_tools()
{
    if ! command -v cc >/dev/null 2>&1; then
        want gcc 'C compiler'
        want libc6-dev 'C library headers'
    fi
    need_tool cmake cmake 'configures the build'
    command -v make >/dev/null 2>&1 || need_tool ninja ninja-build 'runs the build'
    need_tool pkg-config pkg-config 'finds libraries'
}

need_build_libraries()
{
    need_library jansson libjansson-dev JSON
    need_library libcurl libcurl4-openssl-dev download
    need_library libarchive libarchive-dev archives
    need_library libcrypto libssl-dev checksums
    need_library libpcre2-8 libpcre2-dev 'patterns of tokenizers'
    need_library libutf8proc libutf8proc-dev 'Unicode forms of tokenizers'
    need_library libpng libpng-dev images
    need_library zlib zlib1g-dev 'files of PyTorch'
    [ -s "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" ] || [ -d /etc/pki/tls ] ||
        want ca-certificates 'https'
}

# Open MPI, for ranks as processes.
need_mpi()
{
    need_library ompi-c libopenmpi-dev 'ranks as processes'
    need_tool mpirun openmpi-bin 'starts them'
}

# More packages for the tests and scripts/lint.
need_checks()
{
    need_library cmocka libcmocka-dev tests
    need_library liburing liburing-dev 'files without waiting'
    need_library libturbojpeg libturbojpeg0-dev 'JPEG images'
    need_library ompi-c libopenmpi-dev 'ranks as processes'
    need_tool mpirun.openmpi openmpi-bin 'starts them'
    need_library mpich libmpich-dev 'the other MPI'
    need_tool mpiexec.mpich mpich 'starts its ranks'
    need_tool ip iproute2 'hosts of namespaces'
    need_tool nsenter util-linux 'enters them'
    need_tool ssh openssh-client 'starts ranks there'
    # on a system with services, installing it would start one, which is not
    # wanted
    [ -x /usr/sbin/sshd ] || [ -d /run/systemd/system ] || want openssh-server 'lets them in'
    need_tool pdsh pdsh 'the other way'
    need_tool ps procps 'sees what is left'
    need_tool c++ g++ 'headers as C++, kernels of GPUs on the CPU'
    need_tool ld.lld lld 'links tests in half of the time'
    need_tool python3 python3-minimal 'checks of the tree'
    need_tool clang-format clang-format 'form'
    need_tool clang-tidy clang-tidy 'bugs'
    need_tool ctags universal-ctags 'ambiguous names'
    if command -v apt-get >/dev/null; then
        need_tool dpkg-shlibdeps dpkg-dev 'what packages depend on'
        need_tool file file 'the same'
    fi
}

megabytes_installed()
{
    # shellcheck disable=SC2016 # the format is dpkg-query's
    { dpkg-query -W -f '${Installed-Size}\n' 2>/dev/null || echo 0; } | awk '{ n += $1 } END { print int(n / 1024) }'
}

# print_how_to_install AGAIN: lines to copy; AGAIN is the command to run then
print_how_to_install()
{
    sudo=''
    if [ "$(id -u)" != 0 ] && command -v sudo >/dev/null 2>&1; then sudo='sudo '; fi
    printf '  %sapt-get update\n  %sapt-get install -y --no-install-recommends%s\n  %s\n' \
        "$sudo" "$sudo" "$missing" "$1"
}

# require_build_tools NAME: whether they are here; if not, NAME says what to do
require_build_tools()
{
    need_build_tools
    [ "$missing" ] || return 0
    echo "$1: without$missing nothing can be built. Please copy these lines, the first two as root:" >&2
    print_how_to_install "$again" >&2
    return 1
}

# install_missing: installs all packages that need_... found missing; sets
# installed_mb and fetched_mb. Returns 0 if nothing is missing now. $again is the
# command that the user typed.
install_missing()
{
    installed_mb=0
    fetched_mb=0
    [ "$missing" ] || return 0
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "Missing:$missing (names of Debian's packages). This system has no apt-get: please install" \
            "them in another way, then run this again." >&2
        return 1
    fi
    as_root=''
    if [ "$(id -u)" != 0 ]; then
        as_root='sudo -n'
        if ! command -v sudo >/dev/null 2>&1; then
            echo "Packages are missing, and installing them needs root. Please run the first two lines as root:" >&2
        elif ! sudo -n true 2>/dev/null; then
            echo "Packages are missing, and sudo asks for a password. Please copy these lines:" >&2
        else
            as_root_works=yes
        fi
        if [ "${as_root_works:-}" != yes ]; then
            print_how_to_install "$again" >&2
            return 1
        fi
    fi
    echo "Installs ${missing_why%, }." | fold -s -w "$(tput cols 2>/dev/null || echo 80)"
    before=$(megabytes_installed)
    apt_log=$(mktemp)
    if ! apt update || ! apt install --no-install-recommends $missing; then
        tail -n 15 "$apt_log" >&2
        echo "apt-get did not install:$missing (above: its last lines)" >&2
        rm -f "$apt_log"
        return 1
    fi
    fetched_mb=$(sed -n 's/^Need to get \([0-9.]*\) \([kMG]*\)B.*/\1 \2/p' "$apt_log" |
        awk '{ n = $1 * ($2 == "G" ? 1000 : $2 == "M" ? 1 : 0.001) } END { printf "%.0f", n }')
    rm -f "$apt_log"
    installed_mb=$(($(megabytes_installed) - before))
}

# apt-get without questions and output; it waits for another apt-get to end.
apt()
{
    $as_root env DEBIAN_FRONTEND=noninteractive LC_ALL=C apt-get -y -q -o DPkg::Lock::Timeout=300 \
        -o Dpkg::Use-Pty=0 "$@" >>"$apt_log" 2>&1 </dev/null
}
