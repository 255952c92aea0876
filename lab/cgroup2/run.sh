#!/bin/bash
# Proves that nodes run on a machine with control groups v2 only, whatever this machine has:
# boots Debian 12 in QEMU (without KVM, so anywhere; slow for the same reason) and runs the
# checks of guest.sh in it. Needs root, as nodes do. Exits with 0 when every check was ok.
#
#   run.sh [machine|container]   only the checks with systemd, or those without
#   COBALT=path   the program to check (default: target/debug/cobalt)
#   KEEP=1        keeps the guest's console and report
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
cobalt=${COBALT:-$here/../../target/debug/cobalt}
cache=${COBALT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/cobalt}
checks=${1:-machine,container}
deadline=90m # of the guest; each of the two passes took 12 to 22 minutes on two busy cores

packages=systemd,systemd-sysv,dbus,udev,kmod,iproute2,procps,jq,busybox-static
packages+=,linux-image-cloud-amd64

[[ -x $cobalt ]] || { echo "there is no $cobalt: cargo build -p cobalt" >&2; exit 1; }

missing=()
command -v qemu-system-x86_64 >/dev/null || missing+=(qemu-system-x86)
command -v mke2fs >/dev/null || missing+=(e2fsprogs)
command -v mmdebstrap >/dev/null || missing+=(mmdebstrap)
if ((${#missing[@]})); then
    apt-get -q -y -o DPkg::Lock::Timeout=300 update
    apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends "${missing[@]}"
fi

mkdir -p "$cache"
work=$(mktemp -d "$cache/cgroup2-run.XXXXXX")
qemu=
# Called by the trap.
# shellcheck disable=SC2317
finish() {
    if [[ $qemu ]]; then kill -KILL "$qemu" 2>/dev/null || true; fi
    if [[ ${KEEP:-} ]]; then
        rm -f "$work"/*.ext4
        echo "kept: $work"
    else
        rm -rf "$work"
    fi
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# The machine: made once, and never written to. What runs in it comes with the second disk.
unit="[Unit]
RequiresMountsFor=/data
SuccessAction=poweroff-force
FailureAction=poweroff-force
[Service]
Type=oneshot
ExecStart=/bin/bash /data/guest.sh
StandardOutput=file:/dev/ttyS1
StandardError=inherit
[Install]
WantedBy=multi-user.target"
fstab="/dev/vdb /data ext4 defaults 0 2"
key=$(sha256sum <<<"$packages $unit $fstab" | cut -c1-12)
machine=$cache/cgroup2-bookworm-$key
if [[ ! -d $machine ]]; then
    echo "making the machine's disk, once: about 2 minutes"
    # What an interrupted run left is in a directory of its own, removed with it.
    tree=$work/tree
    mmdebstrap --quiet --variant=minbase --include="$packages" \
        --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Languages "none"' \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' bookworm "$tree"
    echo machine >"$tree/etc/hostname"
    echo "$fstab" >"$tree/etc/fstab"
    mkdir "$tree/data"
    echo "$unit" >"$tree/etc/systemd/system/checks.service"
    ln -s /etc/systemd/system/checks.service \
        "$tree/etc/systemd/system/multi-user.target.wants/checks.service"
    # The lab asks for them; with all in the cache it does not use them.
    for program in gcc mmdebstrap; do
        printf '#!/bin/sh\necho "%s: the cache is incomplete" >&2; exit 1\n' $program \
            >"$tree/usr/local/bin/$program"
        chmod 755 "$tree/usr/local/bin/$program"
    done
    mkdir "$work/machine"
    cp "$tree"/boot/vmlinuz-* "$work/machine/vmlinuz"
    cp "$tree"/boot/initrd.img-* "$work/machine/initrd"
    mke2fs -q -t ext4 -d "$tree" "$work/machine/root.ext4" 2G >/dev/null
    rm -rf "$tree"
    mv -T "$work/machine" "$machine"
fi

# The second disk: the program, what labs are made of, and room for labs.
"$cobalt" lab prepare
mkdir -p "$work/data/cache" "$work/data/bin"
cp "$here/guest.sh" "$work/data/"
cp "$cobalt" "$work/data/bin/cobalt"
cp -a "$cache"/kube-* "$cache"/tree-bookworm-* "$cache"/images "$work/data/cache/"
size=$(($(du -sm "$work/data" | cut -f1) * 11 / 10 + 4096))
mke2fs -q -t ext4 -d "$work/data" "$work/data.ext4" "${size}M" >/dev/null
rm -rf "$work/data"

# First serial port: the console. Second: the report. The kernel ends QEMU should this script
# be killed before it can.
report=$work/report
touch "$report"
setpriv --pdeathsig KILL qemu-system-x86_64 \
    -accel tcg,thread=multi -cpu max -smp 2 -m 4096 -nic none -display none -no-reboot \
    -kernel "$machine/vmlinuz" -initrd "$machine/initrd" \
    -append "root=/dev/vda rw console=ttyS0 panic=5 quiet mitigations=off checks=$checks" \
    -drive "file=$machine/root.ext4,if=virtio,format=raw,snapshot=on,cache=unsafe" \
    -drive "file=$work/data.ext4,if=virtio,format=raw,cache=unsafe" \
    -serial "file:$work/console" -serial "file:$report" </dev/null &
qemu=$!
timeout "$deadline" tail -n +1 -f --pid="$qemu" "$report" 2>/dev/null &
# In the background, so that a signal ends this script at once.
wait $! || true
if [[ $(tail -n 1 "$report" | tr -d '\r') == "all checks were ok" ]]; then
    exit 0
fi
echo "the checks did not come to a good end; the end of the machine's console:" >&2
tail -n 40 "$work/console" >&2
exit 1
