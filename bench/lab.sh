#!/usr/bin/env bash
# Measures the lab on a prepared machine: time to ready, power cycles, memory. Prints a table.
set -euo pipefail
COBALT=${COBALT:-target/debug/cobalt}
name=bench-$$
trap '"$COBALT" lab down --name "$name" 2>/dev/null' EXIT

row() { printf '%-36s %s\n' "$1" "$2"; }
timed() { # label command...
  local label=$1 begin end
  shift
  begin=$(date +%s%N)
  "$@" >/dev/null 2>&1
  end=$(date +%s%N)
  row "$label" "$(((end - begin) / 1000000)) ms"
}
# Proportional memory of a process and all below it: PSS of what carries the lab's mark, and of
# everything in the control groups of its nodes.
memory() { # lab-id
  local pids pid total=0 pss
  pids=$(grep -lsz "^COBALT_LAB_ID=$1$" /proc/[0-9]*/environ | cut -d/ -f3
    find /sys/fs/cgroup -path "*cobalt-$1-*" -name cgroup.procs -exec cat {} + 2>/dev/null)
  for pid in $(sort -un <<<"$pids"); do
    pss=$(awk '/^Pss:/ { print $2 }' "/proc/$pid/smaps_rollup" 2>/dev/null || true)
    total=$((total + ${pss:-0}))
  done
  echo "$((total / 1024)) MiB"
}
lab_id() { "$COBALT" lab status --name "$name" -o json | sed -n 's/^ *"id": "\(.*\)",$/\1/p'; }

timed "API server alone: up" "$COBALT" lab up --name "$name" --api-only
row "API server alone: memory" "$(memory "$(lab_id)")"
timed "API server alone: down" "$COBALT" lab down --name "$name"
timed "control plane, 3 nodes, DNS: up" "$COBALT" lab up --name "$name" --nodes 3
row "control plane, 3 nodes: memory" "$(memory "$(lab_id)")"
timed "power loss" "$COBALT" lab power --name "$name" loss n1
timed "power on to Ready" "$COBALT" lab power --name "$name" on n1
timed "reboot to Ready" "$COBALT" lab power --name "$name" reboot n2
timed "power off" "$COBALT" lab power --name "$name" off n3
timed "control plane, 3 nodes: down" "$COBALT" lab down --name "$name"

timed "OVN alone: up" "$COBALT" lab up --name "$name" --with ovn
"$COBALT" lab down --name "$name"
timed "2 hypervisors alone: up" "$COBALT" lab up --name "$name" --with hypervisors --nodes 2
"$COBALT" lab down --name "$name"
timed "OVN, switch, 3 hypervisors: up" "$COBALT" lab up --name "$name" --with hypervisors,ovn
row "OVN, switch, 3 hypervisors: memory" "$(memory "$(lab_id)")"
timed "hypervisor: power loss" "$COBALT" lab power --name "$name" loss hv1
timed "hypervisor: power on to joined" "$COBALT" lab power --name "$name" on hv1
"$COBALT" lab down --name "$name"
timed "light OpenStack, 3 hosts: up" "$COBALT" lab up --name "$name" --with openstack-light
row "light OpenStack, 3 hosts: memory" "$(memory "$(lab_id)")"
"$COBALT" lab down --name "$name"
timed "OpenStack, OVN, 3 hypervisors: up" "$COBALT" lab up --name "$name" --with hypervisors,openstack
"$COBALT" lab down --name "$name"
timed "whole region with 3 servers: up" "$COBALT" lab up --name "$name" \
  --with kube,hypervisors,ovn,openstack,bmc --servers 3
row "whole region with 3 servers: memory" "$(memory "$(lab_id)")"
timed "whole region with 3 servers: down" "$COBALT" lab down --name "$name"
