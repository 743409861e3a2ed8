#!/bin/sh
# Usage: debs.sh FOLDER. Installs the .deb files of FOLDER in a temporary copy of this machine, uses and removes them:
# man pages open, completions load, examples build with pkg-config and run, Python finds the system's library; no file
# remains after removal.
#
# The copy is an overlay of /, which needs root; exits with 77 (skipped) without. Dependencies of the packages must be
# installed, or available to apt-get.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=$(cd "$1" && pwd)
[ "$(id -u)" -eq 0 ] || { echo 'skipped: an overlay of this machine needs root'; exit 77; }

# A separate mount namespace: everything is unmounted when the last process exits.
if [ -z "${MHA_IN_NAMESPACE:-}" ]; then
    unshare --mount true 2>/dev/null || { echo 'skipped: no mount namespaces here'; exit 77; }
    MHA_IN_NAMESPACE=yes exec unshare --mount "$0" "$folder"
fi
work=$(mktemp -d)
trap 'umount -R "$work" 2>/dev/null || true; rmdir "$work" 2>/dev/null || true' EXIT
mount -t tmpfs tmpfs "$work"
mkdir "$work/upper" "$work/work" "$work/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" "$work/root" ||
    { echo 'skipped: no overlay of / here'; exit 77; }
root=$work/root
mount --rbind /dev "$root/dev"
mount --rbind /proc "$root/proc"
mkdir -p "$root/mnt/debs"
cp "$folder"/*.deb "$here/in_root.sh" "$root/mnt/debs"
env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 HOME=/root \
    DEBIAN_FRONTEND=noninteractive chroot "$root" sh /mnt/debs/in_root.sh
