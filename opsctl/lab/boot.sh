#!/bin/bash
# boot.sh: becomes PID 1 of a lab host. Run by hosts.py inside new mount, pid, net, uts, ipc and time namespaces.
#   boot.sh join    enter the host's own cgroup, then a cgroup namespace rooted there (else every lab host's
#                   systemd would believe itself at the root of the same tree), and go on as
#   boot.sh boot    build / as an overlay over LAB_LOWER (our / or a release's), pivot into it, start init
# Everything comes in by LAB_ variables; nothing written here reaches the machine that the lab runs on.
set -euo pipefail

if [ "$1" = join ]; then
  echo 0 >"$LAB_CGROUP/cgroup.procs" # 0: the writer itself
  exec unshare --cgroup bash "$0" boot
fi

dir=$LAB_DIR
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=$LAB_LOWER,upperdir=$dir/disk/upper,workdir=$dir/disk/work" "$dir/root"
cd "$dir/root"

# Pseudo file systems. /dev is made anew: a shared one would share /dev/log and /dev/shm with this machine.
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t tmpfs -o mode=755,size=256m tmpfs dev
for node in null zero full random urandom tty; do
  : >"dev/$node"
  mount --bind "/dev/$node" "dev/$node"
done
mkdir dev/pts dev/shm dev/mqueue
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount -t mqueue mqueue dev/mqueue
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/0 dev/stdin
ln -s /proc/self/fd/1 dev/stdout
ln -s /proc/self/fd/2 dev/stderr
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
[ ! -d root/.ssh ] || mount -t tmpfs -o mode=700 tmpfs root/.ssh # this machine's own keys are no business of the host's

# Control groups of version 2 alone, whatever this machine has: with version 1 in sight systemd would mount its
# controllers, whose trees no namespace of ours keeps apart.
mount -t cgroup2 cgroup2 sys/fs/cgroup

# A boot of its own: new boot_id; sysctls and the kernel's knobs are this machine's, so they are read only.
cat /proc/sys/kernel/random/uuid >"$dir/boot_id"
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount --bind "$dir/boot_id" proc/sys/kernel/random/boot_id
mount -o remount,ro sys

while IFS=: read -r source target mode; do
  [ -n "$source" ] || continue
  if [ -d "$source" ]; then mkdir -p ".$target"; else mkdir -p ".${target%/*}" && : >>".$target"; fi
  mount --rbind "$source" ".$target"
  [ "$mode" = rw ] || mount -o remount,bind,ro ".$target"
done <<<"$LAB_BINDS"

if [ ! -e "$dir/disk/seeded" ]; then # the first boot; later ones find their disk as it was
  rm -f etc/ssh/ssh_host_* etc/systemd/system/*.wants/* etc/systemd/system/*.requires/*
  rm -rf var/log/journal
  mkdir -p var/log
  mkdir -m 2755 var/log/journal
  tar --keep-directory-symlink -xpf "$dir/seed.tar"
  while read -r path; do [ -z "$path" ] || rm -rf ".$path"; done <<<"$LAB_REMOVE"
  if [ "$LAB_LOGIN" != root ]; then
    chmod go+rx root # this checkout, or its Python, may live in there
    chroot . useradd --create-home --shell /bin/bash "$LAB_LOGIN"
  fi
  touch "$dir/disk/seeded"
fi

pivot_root . mnt
hash -r
umount -l /mnt
hostname "$LAB_NAME"
ip link set lo up
until [ -e /sys/class/net/eth0 ]; do sleep 0.02; done # hosts.py plugs the cable in from outside
ip addr add "$LAB_ADDRESS/24" dev eth0
ip link set eth0 up
ip route add default via "$LAB_GATEWAY" 2>/dev/null || true # refused while the cable is cut

init=(/lib/systemd/systemd --system --unit=multi-user.target --log-target=journal --log-level=info --show-status=false)
if [ "$LAB_INIT" = sshd ]; then # a host without systemd
  mkdir -p /run/sshd
  init=(/usr/sbin/sshd -D -e)
fi
# The wall clock is shared with this machine: no program in here may set it.
exec env -i container=lab PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
  setpriv --bounding-set=-sys_time,-sys_module -- "${init[@]}"
