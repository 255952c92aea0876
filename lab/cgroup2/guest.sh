#!/bin/bash
# The checks: run by run.sh in a machine with control groups v2 only, first as a service of that
# machine's systemd, then in a container of it that sees no systemd.
set -euo pipefail

# An emulated machine is ten to twenty times slower than a real one.
export COBALT_LAB_PATIENCE=5
export HOME=/root COBALT_CACHE=/data/cache COBALT_LABS=/data/labs
export PATH=/data/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
memory=$((64 << 20))

# check NAME COMMAND...: runs it in a shell of its own that ends at the first failure. No `if`
# or `||` around it: in those bash lets failures pass.
check() {
    local name=$1 began=$EPOCHREALTIME result took
    shift
    set +e
    (set -ex; "$@") >/tmp/said 2>&1
    result=$?
    set -e
    took=$(((${EPOCHREALTIME/./} - ${began/./}) / 100000))
    if ((result == 0)); then
        echo "ok $where: $name ($((took / 10)).$((took % 10)) s)"
        # The lab's own steps, with their times.
        grep -E '^ +[0-9.]+ (ms|s|min) ' /tmp/said || true
        return
    fi
    echo "FAILED $where: $name ($((took / 10)) s, exit status $result)"
    show /tmp/said
    show /data/labs/lab/error
    for log in /data/labs/lab/{logs/supervisor,nodes/n?/console}.log; do show "$log"; done
    journalctl -D /data/labs/lab/nodes/n1/var/log/journal -u kubelet -n 30 --no-pager -o cat \
        2>/dev/null | cut -c1-300 | sed 's/^/    kubelet: /' || true
    dmesg | tail -n 10 | sed 's/^/    kernel: /'
    exit 1
}

show() {
    # Each request before the API server is ready is an error of the client.
    if [[ -s $1 ]]; then grep -v kube_client "$1" | tail -n 30 | cut -c1-300 | sed "s|^|    ${1##*/}: |"; fi
}

# until_ok SECONDS COMMAND...: there is no event for everything.
until_ok() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        ((SECONDS < end)) || return 1
        sleep 0.5
    done
}

lab() { timeout 1500 cobalt lab "$@"; }

status() { lab status --name lab -o json | jq -r ".[0]$1"; }

kubectl() {
    KUBECONFIG=/data/labs/lab/kubeconfig timeout 400 /data/cache/kube-*/kubectl "$@"
}

node_is() { # True or Unknown
    kubectl wait --for="jsonpath={.status.conditions[?(@.type==\"Ready\")].status}=$1" \
        --timeout=300s node/n1
}

groups_of_labs() { find /sys/fs/cgroup -name 'cobalt-*'; }

# Whatever a lab makes on a machine.
state() {
    ip -o link show | cut -d: -f2
    ip -4 route show table all
    ip netns list
    groups_of_labs
    grep -lsz '^COBALT_LAB_ID=' /proc/[0-9]*/environ || true
    # `ip netns` leaves this one for the next namespace.
    findmnt -rno TARGET | grep -v '^/run/netns$' | sort
    find /data/labs -mindepth 1 -maxdepth 1 ! -name .lock 2>/dev/null || true
    if [[ $where == machine ]]; then systemctl list-units --all --plain --no-legend 'cobalt-*'; fi
}

only_v2() {
    [[ $(stat -fc %T /sys/fs/cgroup) == cgroup2fs ]]
    [[ $(grep -c ' - cgroup ' /proc/self/mountinfo) == 0 ]]
    case $where in
        machine) [[ -d /run/systemd/system ]] ;;
        container) [[ ! -e /run/systemd/system && -e /sys/fs/cgroup/cgroup.type ]] ;;
    esac
}

limits() {
    kubectl apply -f - <<END
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "limited"}, "spec": {
  "terminationGracePeriodSeconds": 0,
  "containers": [{"name": "main", "image": "cobalt.lab/busybox:1", "command": ["sleep", "1000000"],
    "resources": {"limits": {"cpu": "250m", "memory": "64Mi"}}}]}}
END
    kubectl wait --for=condition=Ready --timeout=300s pod/limited
    limits_hold
}

# As the machine sees them, and as the pod does.
limits_hold() {
    local uid group
    uid=$(kubectl get pod limited -o 'jsonpath={.metadata.uid}') &&
        group=$(find /sys/fs/cgroup -type d -path "*/node/kubepods/pod$uid") &&
        [[ $(<"$group/memory.max") == "$memory" ]] &&
        [[ $(<"$group/cpu.max") == "25000 100000" ]] &&
        [[ $(kubectl exec limited -- cat /sys/fs/cgroup/memory.max) == "$memory" ]]
}

# Returns when the node of the new boot is Ready.
reboot() {
    local before
    before=$(status .nodes[0].bootId)
    lab power reboot n1
    [[ $(status '.nodes[0]|"\(.on) \(.lastEnd)"') == "true reboot" ]]
    [[ $(status .nodes[0].bootId) != "$before" ]]
}

off() { # off or loss, and what the lab says afterwards
    lab power "$1" n1
    [[ $(status '.nodes[0]|"\(.on) \(.lastEnd)"') == "false $2" ]]
    [[ -z $(groups_of_labs) ]]
}

stop() {
    lab fault stop n1
    grep -qsx 'frozen 1' /sys/fs/cgroup/{,system.slice/}cobalt-*/node/cgroup.events
    node_is Unknown
}

cont() {
    lab fault cont n1
    node_is True
}

refused() {
    if lab up --nodes 1 >/tmp/refusal 2>&1; then return 1; fi
    grep 'runs already' /tmp/refusal
    [[ $(status .state) == ready ]]
}

supervisor_is_gone() { [[ $(status .pid) == null ]]; }

killed() {
    kill -KILL "$(status .pid)"
    until_ok 10 supervisor_is_gone
    [[ $(groups_of_labs) ]] # it could take nothing down
    lab clean
}

nothing_left() { diff /tmp/before <(state); }

checks() {
    check "control groups v2 only, kernel $(uname -r), $(uptime -p)" only_v2
    state >/tmp/before
    check "up, one node" lab up --nodes 1
    check "kubectl: the node is Ready" node_is True
    check "limits of a pod are in its control group" limits
    check "power reboot" reboot
    check "power reboot once more" reboot
    check "the pod is back with its limits" until_ok 300 limits_hold
    check "power off" off off off
    check "kubectl: the node is gone" node_is Unknown
    check "power on" lab power on n1
    check "power loss" off loss crash
    check "power on after the loss" lab power on n1
    check "fault stop" stop
    check "fault cont" cont
    check "a second up is refused" refused
    check "supervisor killed, clean" killed
    check "nothing is left after clean" nothing_left
    check "up again, two nodes" lab up --nodes 2
    check "down" lab down
    check "nothing is left after down" nothing_left
}

wanted() { grep -q "checks=[a-z,]*$1" /proc/cmdline; }

where=${1:-machine}
if [[ $where == container ]]; then
    checks
    exit
fi
if wanted machine; then checks; fi
if wanted container; then
    # A container as container engines make them: processes, mounts and control groups of its
    # own, and nobody else in the group that it sees as the root.
    # shellcheck disable=SC2016
    systemd-run --quiet --scope --collect --property=Delegate=yes --description=container \
        bash -euc '
            export group=/sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)
            mkdir "$group/engine" "$group/container"
            echo 0 >"$group/engine/cgroup.procs"
            echo +cpu +cpuset +io +memory +pids >"$group/cgroup.subtree_control"
            exec unshare --mount --pid --fork --kill-child --mount-proc bash -euc "
                echo 0 >$group/container/cgroup.procs
                mount -t tmpfs none /run/systemd
                exec unshare --cgroup bash -euc \"
                    umount /sys/fs/cgroup
                    mount -t cgroup2 none /sys/fs/cgroup
                    exec bash /data/guest.sh container\""'
fi
echo "all checks were ok"
