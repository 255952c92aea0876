# bake.sh TREE WORK PACKAGES MICRO KERNEL INITRD COMMAND_LINE: runs bake.py in a root that is thrown
# away, in namespaces that unshare has made. WORK has upper, work, root, and state for what is kept.
set -eu
tree=$1 work=$2 packages=$3 micro=$4 kernel=$5 initrd=$6 command_line=$7
root=$work/root
ip link set lo up
mount -t overlay -o "lowerdir=$tree,upperdir=$work/upper,workdir=$work/work" overlay "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mkdir -p "$root/opt/openstack" "$root/run/guests" "$root/run/lock"
mount --bind -o ro "$packages" "$root/opt/openstack"
for file in micro kernel initrd; do
    eval "from=\$$file"
    touch "$root/run/guests/$file"
    mount --bind -o ro "$from" "$root/run/guests/$file"
done
for part in mysql keystone glance; do
    mkdir -p "$work/state/$part" "$root/var/lib/$part"
    mount --bind "$work/state/$part" "$root/var/lib/$part"
done
exec chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
    PYTHONPATH=/opt/openstack PYTHONWARNINGS=ignore OS_NOVA_DISABLE_EVENTLET_PATCHING=true \
    LINUX_COMMAND_LINE="$command_line" /usr/bin/python3 /opt/cobalt/bake.py
