#!/usr/bin/env bash
# Starts a one-node Ceph object gateway (S3) under folder $1 on 127.0.0.1:$2 (also takes $2+1 and $2+2).
# Needs: apt-get install -y --no-install-recommends radosgw ceph-mon ceph-osd ceph-common
# Keys: testkey, testsecret. Stop it by ending the processes whose ids are in $1/run/*.pid.
set -e
D=$1
P=$2
mkdir -p "$D"/{mon,osd,rgw,run}
K="$D/keyring"
MON="[v2:127.0.0.1:$((P + 1)),v1:127.0.0.1:$((P + 2))]"
cat > "$D/ceph.conf" <<C
[global]
fsid = $(cat /proc/sys/kernel/random/uuid)
mon_host = $MON
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
keyring = $K
run_dir = $D/run
admin_socket = $D/run/\$name.asok
pid_file = $D/run/\$name.pid
log_file = $D/run/\$name.log
crash_dir = $D/run
osd_pool_default_size = 1
osd_pool_default_min_size = 1
mon_allow_pool_size_one = true
osd_crush_chooseleaf_type = 0
osd_pool_default_pg_num = 4
osd_pool_default_pgp_num = 4
osd_pool_default_pg_autoscale_mode = off
mon_data_avail_crit = 1
[mon.a]
mon_data = $D/mon
[osd.0]
osd_data = $D/osd
osd_objectstore = bluestore
bluestore_block_size = 6442450944
[client.rgw.a]
keyring = $K
rgw_data = $D/rgw
rgw_frontends = beast endpoint=127.0.0.1:$P
rgw_rados_pool_pg_num_min = 4
rgw_gc_obj_min_wait = 5
rgw_gc_processor_period = 5
C
key() { ceph-authtool "$K" --gen-key --name="$1" "${@:2}" > /dev/null; }
ceph-authtool -C "$K" > /dev/null
key mon. --cap mon 'allow *'
for entity in client.admin client.rgw.a osd.0; do
    key $entity --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'
done
monmaptool --create --clobber --addv a "$MON" --fsid "$(sed -n 's/^fsid = //p' "$D/ceph.conf")" "$D/monmap" > /dev/null
C="-c $D/ceph.conf"
ceph-mon $C --mkfs -i a --monmap "$D/monmap" --keyring "$K"
ceph-mon $C -i a
U=$(cat /proc/sys/kernel/random/uuid)
ceph $C osd new "$U" > /dev/null
ceph-osd $C -i 0 --mkfs --osd-uuid "$U" > /dev/null 2>&1
ceph-osd $C -i 0 > /dev/null 2>&1
radosgw $C -n client.rgw.a
for _ in $(seq 300); do (exec 3<> "/dev/tcp/127.0.0.1/$P") 2> /dev/null && break; sleep 0.1; done
radosgw-admin $C user create --uid=t --display-name=t --access-key=testkey --secret-key=testsecret > /dev/null 2>&1
