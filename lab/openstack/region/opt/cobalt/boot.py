"""boot.py SERVERS SECONDS: the servers vm1, vm2, ... in turns on the hypervisors; ends when each is
ACTIVE and its guest has an address. Can be run again: servers that are there stay as they are.
"""

import re
import sys
import time

from api import Cloud

IMAGE, FLAVOR, NETWORK = 'lab-linux', 'm1.lab', 'lab'
# What the guest writes to its console when it has a lease.
LEASE = re.compile(r'eth\d+ address ([\d.]+)')
# Older versions cannot name the host of a new server.
VERSION = {'OpenStack-API-Version': 'compute 2.74'}


def servers(cloud, query=''):
    # Without details: for those Nova asks Neutron each time.
    found = cloud.call('GET', 'compute', f'/servers{query}')['servers']
    return {server['name']: server['id'] for server in found}


def create(cloud, count):
    """Returns the names of those that were not there."""
    hosts = cloud.call('GET', 'compute', '/os-hypervisors')['hypervisors']
    hosts = sorted(h['hypervisor_hostname'] for h in hosts
                   if h['state'] == 'up' and h['status'] == 'enabled')
    if not hosts:
        sys.exit('no hypervisor is up and enabled: `openstack compute service list` shows them')
    image = cloud.call('GET', 'image', f'/v2/images?name={IMAGE}')['images'][0]['id']
    network = cloud.call('GET', 'network', f'/v2.0/networks?name={NETWORK}')['networks'][0]['id']
    there = servers(cloud)
    created = []
    for index in range(count):
        name = f'vm{index + 1}'
        if name not in there:
            created.append(name)
            cloud.call('POST', 'compute', '/servers', {'server': {
                'name': name, 'imageRef': image, 'flavorRef': FLAVOR,
                'host': hosts[index % len(hosts)], 'networks': [{'uuid': network}]}}, **VERSION)
    return created


def lease(cloud, server):
    action = {'os-getConsoleOutput': {}}
    console = cloud.call('POST', 'compute', f'/servers/{server}/action', action)['output']
    found = LEASE.search(console)
    return found and found[1]


def main(count, seconds):
    cloud, begun = Cloud(), time.monotonic()
    waiting = create(cloud, count)
    while waiting:
        active, failed = servers(cloud, '?status=ACTIVE'), servers(cloud, '?status=ERROR')
        for name in list(waiting):
            if name in failed:
                server = cloud.call('GET', 'compute', f'/servers/{failed[name]}')['server']
                sys.exit(f'{name} is in ERROR: {server.get("fault", {}).get("message")}')
            address = name in active and lease(cloud, active[name])
            if address:
                print(f'{time.monotonic() - begun:5.1f} {name} {address}', flush=True)
                waiting.remove(name)
        if waiting and time.monotonic() - begun > seconds:
            without = [name for name in waiting if name in active]
            sys.exit(f'not up after {seconds} s: {", ".join(waiting)}; '
                     f'ACTIVE, but without an address: {", ".join(without) or "none"}')
        # Nova has no way to wait for a server.
        time.sleep(0.5)


if __name__ == '__main__':
    main(int(sys.argv[1]), int(sys.argv[2]))
