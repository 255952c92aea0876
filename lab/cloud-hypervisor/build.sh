#!/bin/sh
# Builds libvirt's daemon and ch driver: build.sh MULTIARCH. Runs inside the build tree, without a
# network, with the archives of Debian's source package in /build.
set -eu
cd /build
mkdir source
tar -xf libvirt_*.orig.tar.* --strip-components=1 -C source
tar -xf libvirt_*.debian.tar.* -C source
cd source
# libvirt (11.3.0-3) trixie; urgency=medium
sed -n '1s/.*(\(.*\)).*/\1/p' debian/changelog >/build/version
# With Debian's changes: what is built here runs with Debian's own libvirt library.
grep -v '^#' debian/patches/series | while read -r name; do
    patch -s -p1 <"debian/patches/$name"
done

# Paths and what a client sees (SASL, polkit, TLS) are as in Debian's libvirtd. The other drivers
# are enabled because the daemon loads, from Debian's packages, only those that it knows of.
meson setup /build/out \
    --auto-features=disabled \
    --prefix=/usr --sysconfdir=/etc --localstatedir=/var -Drunstatedir=/run \
    --libdir="lib/$1" --libexecdir=lib/libvirt -Dinitconfdir=/etc/default \
    -Ddebug=false -Doptimization=1 -Dno_git=true -Drpath=disabled \
    -Dinit_script=systemd -Dunitdir=/usr/lib/systemd/system \
    -Dremote_default_mode=legacy -Dtls_priority=NORMAL -Dpolkit=enabled -Dsasl=enabled \
    -Dcapng=enabled -Dcurl=enabled -Djson_c=enabled -Dlibnl=enabled -Dlibpcap=enabled \
    -Dpciaccess=enabled -Dudev=enabled \
    -Ddriver_qemu=enabled -Ddriver_interface=enabled -Ddriver_network=enabled \
    -Ddriver_secrets=enabled -Dstorage_dir=enabled \
    -Ddriver_libvirtd=enabled -Ddriver_remote=enabled -Ddriver_ch=enabled

# Nothing else differs from Debian's build, so nothing else is taken from here.
ninja -C /build/out src/libvirtd src/libvirt_driver_ch.so
