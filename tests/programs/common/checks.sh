# tests/programs/common/checks.sh: for scripts that run a program as a user
# does. The caller sets $program and sources this; it works in a new folder,
# which is removed at the end.
# SPDX-License-Identifier: MIT
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failed=0 passed=0

pass() { passed=$((passed + 1)); }

fail()
{
    failed=$((failed + 1))
    echo "FAILED: $1"
    sed 's/^/    out: /' out
    sed 's/^/    err: /' err
}

# status WANT ARGUMENTS...: runs the program; out and err hold what it printed
status()
{
    want=$1
    shift
    "$program" "$@" >out 2>err </dev/null
    got=$?
    if [ $got -eq "$want" ]; then pass; else fail "status $got, want $want: $*"; fi
}

has() { if grep -q -- "$2" "$1"; then pass; else fail "$1 has no \"$2\""; fi; }
has_not() { if grep -q -- "$2" "$1"; then fail "$1 has \"$2\""; else pass; fi; }
lines() { if [ "$(wc -l <"$1")" -eq "$2" ]; then pass; else fail "$1 has not $2 lines"; fi; }
same() { if cmp -s "$1" "$2"; then pass; else fail "$1 and $2 differ"; fi; }
none() { if [ ! -e "$1" ]; then pass; else fail "$1 is there"; fi; }

# have_mpich BINARY_DIR. Ubuntu 24.04's waits for a PMIx server, which its
# mpiexec.hydra is not, and starts single ranks.
have_mpich()
{
    [ -e "$1/libdeepspeed_mpich.so" ] && command -v mpiexec.hydra >/dev/null &&
        ! ldd "$1/libdeepspeed_mpich.so" | grep -q libpmix
}

finish()
{
    echo "$passed passed, $failed failed"
    [ $failed -eq 0 ]
}
