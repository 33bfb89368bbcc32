# tests/launcher/hosts.sh: hosts of a cluster, made of namespaces of this
# machine; for scripts that source it.
#
# The caller's script runs twice. Outside, `hosts_enter "$@"` looks whether this
# machine can do it and executes the script again in network, mount, process,
# IPC and host-name namespaces of its own: all that is made from here on
# (interfaces, mounts, files, processes) is in them and ends with them, even if
# the script is killed by SIGKILL, because the kernel ends a process namespace
# with its first process. The machine's own network, /tmp and ~/.ssh are not
# seen from there. Inside, `hosts_start N` makes node0 ... node(N-1), each again
# in namespaces of its own, with an sshd, /tmp, /dev/shm, a home folder, and an
# eth0 on a bridge that they share:
#
#     node0 10.99.0.1, node1 10.99.0.2, ...        the tree is /run/tree everywhere, the build /run/build
#
# `on K COMMAND...` runs a command on node K, with a fresh environment, in /tmp.
# SPDX-License-Identifier: MIT
# shellcheck shell=sh

hosts_here=$(cd "$(dirname "$0")" && pwd)
hosts_home=$(getent passwd 0 | cut -d : -f 6)
hosts_net=10.99.0

# hosts_skip WHY: as CTest and TAP understand it
hosts_skip()
{
    echo "1..0 # SKIP $1"
    exit 77
}

# hosts_enter BUILD TOOLS SCRIPT ARGUMENTS...: returns inside; outside it never
# does
hosts_enter()
{
    [ "${HOSTS_INSIDE-}" ] && return
    hosts_build=$(cd "$1" && pwd) || hosts_skip "there is no build folder $1"
    user=''
    [ "$(id -u)" = 0 ] || user='--user --map-root-user' # not every system allows it
    for tool in ip unshare nsenter $2; do
        PATH=$PATH:/usr/sbin:/sbin command -v "$tool" >/dev/null || hosts_skip "there is no $tool"
    done
    shift 2
    set -- unshare $user --net --uts --mount --ipc --pid --fork --kill-child --mount-proc "$@"
    unshare $user --net --uts --mount --ipc --pid --fork --mount-proc sh -c \
        'mount -t tmpfs tmpfs /run && ip link add br0 type bridge && ip link add v0 type veth peer name v1' \
        2>/dev/null || hosts_skip "this system does not allow namespaces, bridges or mounts"
    HOSTS_INSIDE=$hosts_build PATH=$PATH:/usr/sbin:/sbin exec "$@"
}

# Makes the files that the hosts share, in a /run that only they see.
hosts_share()
{
    tree=$(cd "$hosts_here/../.." && pwd)
    mount -t tmpfs tmpfs /run && mkdir -p /run/tree /run/build /run/sshd /run/hosts || return 1
    mount --bind "$tree" /run/tree && mount --bind "$HOSTS_INSIDE" /run/build || return 1
    hosts_known=/run/hosts/known_hosts
    echo 127.0.0.1 localhost >/run/hosts/hosts
    : >/run/hosts/resolv.conf
    sed 's/^root:[^:]*:/root:*:/' /etc/shadow >/run/hosts/shadow 2>/dev/null # "!" would lock ssh out
    chmod 600 /run/hosts/shadow
    mount --bind /run/hosts/shadow /etc/shadow || return 1
    mount --bind /run/hosts/resolv.conf /etc/resolv.conf || return 1
    ip link set lo up
    ip link add br0 type bridge && ip addr add $hosts_net.254/24 dev br0 && ip link set br0 up
}

# The keys and files of ssh, if it is there.
hosts_share_ssh()
{
    if ! command -v sshd >/dev/null || ! command -v ssh-keygen >/dev/null; then return; fi
    ssh-keygen -q -t ed25519 -N '' -C cluster -f /run/hosts/id_ed25519 || return 1
    for k in $hosts_all; do
        ssh-keygen -q -t ed25519 -N '' -C "node$k" -f "/run/hosts/host_key$k" || return 1
        echo "node$k,$hosts_net.$((k + 1)) $(cut -d ' ' -f 1,2 "/run/hosts/host_key$k.pub")" >>$hosts_known
        cat >"/run/hosts/sshd_config$k" <<CONFIG
HostKey /run/hosts/host_key$k
PidFile none
PermitRootLogin prohibit-password
AuthorizedKeysFile /run/hosts/id_ed25519.pub
UsePAM no
StrictModes no
UseDNS no
PrintMotd no
PrintLastLog no
MaxStartups 100
CONFIG
    done
    cat >/run/hosts/ssh_config <<CONFIG
IdentityFile /run/hosts/id_ed25519
UserKnownHostsFile $hosts_known
StrictHostKeyChecking yes
ConnectTimeout 5
LogLevel ERROR
CONFIG
}

# The first process of host K: what is its own, then sshd; it collects what was
# orphaned. shellcheck disable=SC2016 # expanded on the host
hosts_first='
k=$1 home=$2 net=$3
hostname "node$k"
mount -t tmpfs -o mode=1777 tmpfs /tmp && : >"/tmp/keep.node$k" && mount -t tmpfs -o mode=1777 tmpfs /dev/shm || exit 1
mount -t tmpfs -o mode=700 tmpfs "$home" && mkdir -m 700 "$home/.ssh" || exit 1
[ ! -f /run/hosts/ssh_config ] || cp /run/hosts/ssh_config "$home/.ssh/config"
mount --bind /run/hosts/hosts /etc/hosts || exit 1
ip link set lo up
until ip link show eth0 >/dev/null 2>&1; do sleep 0.01; done
ip addr add "$net.$((k + 1))/24" dev eth0 && ip link set eth0 up || exit 1
cd /tmp
if [ -f "/run/hosts/sshd_config$k" ]; then
    env -i PATH="$PATH" "$(command -v sshd)" -D -e -f "/run/hosts/sshd_config$k" 2>"/run/hosts/sshd$k.log" &
fi
: >"/run/hosts/ready$k"
sleep infinity &
while :; do wait; done'

# hosts_start N: node0 ... node(N-1)
hosts_start()
{
    trap 'exit 143' TERM INT HUP # the first process of a namespace would ignore them
    hosts_all=$(seq 0 $(($1 - 1)))
    hosts_share || return 1
    for k in $hosts_all; do echo "$hosts_net.$((k + 1)) node$k" >>/run/hosts/hosts; done
    mount --bind /run/hosts/hosts /etc/hosts
    hosts_share_ssh || return 1
    for k in $hosts_all; do
        unshare --net --uts --mount --ipc --pid --fork --kill-child --mount-proc \
            sh -c "$hosts_first" first "$k" "$hosts_home" $hosts_net </dev/null &
        above=$!
        first=''
        until [ "$first" ]; do first=$(cat "/proc/$above/task/$above/children") || return 1; done
        first=${first% }
        echo "$first" >"/run/hosts/pid$k"
        ip link add "veth$k" type veth peer name eth0 netns "$first" || return 1
        ip link set "veth$k" master br0 && ip link set "veth$k" up || return 1
    done
    for k in $hosts_all; do
        n=0
        until [ -f "/run/hosts/ready$k" ]; do
            n=$((n + 1)) && [ $n -lt 500 ] || return 1
            sleep 0.02
        done
        # cases remove all in /tmp: it must be the tmpfs of the host
        on "$k" test -f "/tmp/keep.node$k" || return 1
    done
}

# on K COMMAND...: signals are as a terminal's shell leaves them, though this
# shell's jobs ignore some. -r: the host's root, which in a chroot is not that
# of its namespace of mounts
on()
{
    host=$1
    shift
    nsenter -t "$(cat "/run/hosts/pid$host")" -n -u -m -i -p -r --wd=/tmp -- env -i \
        --default-signal=INT,QUIT,HUP,TERM,PIPE HOME="$hosts_home" PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin \
        LD_LIBRARY_PATH=/run/build DS_CIFAR10_SAMPLE=/run/tree/assets/cifar10-sample.tar.xz LC_ALL=C "$@"
}

# hosts_left: what is on the hosts that was not there at the start, a line each:
# processes, files, sockets
hosts_left()
{
    for k in $hosts_all; do
        # the first process, its sleep, sshd, and this look at them
        on "$k" sh -c '
            ps -e -o pid=,stat=,args= | awk -v me=$$ '"'"'
                $1 == 1 || $1 == me || $2 ~ /^Z/ || /sleep infinity$/ || /sshd: .*\[listener\]/ || / ps -e -o / || / awk / { next }
                { print "process", $0 }'"'"'
            find /tmp /dev/shm -mindepth 1 -not -path "/tmp/keep*" | sed "s/^/file /"
            awk '"'"'NR > 1 && $4 == "0A" && $2 !~ /:0016$/ { print "listens", $2 }'"'"' /proc/net/tcp /proc/net/tcp6
            awk '"'"'NR > 1 && NF > 7 { print "unix socket", $8 }'"'"' /proc/net/unix' | sed "s/^/node$k: /"
    done
}

hosts_cut() { ip link set "veth$1" down; }
hosts_mend() { ip link set "veth$1" up; }
