"""in_service.py HYPERVISORS ZONE SECONDS: waits until that many hypervisors take servers of this
project in a zone; somebody else takes them into service.
"""

import sys
import time

from api import Cloud


def reservations(cloud):
    """For each host that takes servers of some projects only: which."""
    reserved = {}
    for aggregate in cloud.call('GET', 'compute', '/os-aggregates')['aggregates']:
        projects = [value for key, value in aggregate['metadata'].items()
                    if key.startswith('filter_tenant_id')]
        for host in aggregate['hosts'] if projects else ():
            reserved.setdefault(host, []).extend(projects)
    return reserved


def obstacle(service, zone, project, reserved):
    """What keeps servers away from a nova-compute, or None."""
    if service['state'] != 'up':
        return 'down'
    if service['status'] != 'enabled':
        return f'disabled ({service["disabled_reason"] or "no reason given"})'
    if service['zone'] != zone:
        return f'in zone {service["zone"]}'
    if project not in reserved.get(service['host'], [project]):
        return 'for servers of other projects only'
    return None


def obstacles(cloud, zone):
    """Each hypervisor, and what keeps servers away from it."""
    services = cloud.call('GET', 'compute', '/os-services?binary=nova-compute')['services']
    reserved = reservations(cloud)
    return {service['host']: obstacle(service, zone, cloud.project, reserved)
            for service in services}


def main(count, zone, seconds):
    cloud, begun = Cloud(), time.monotonic()
    while True:
        try:
            found = obstacles(cloud, zone)
            if sum(missing is None for missing in found.values()) >= count:
                return
            states = [f'{host}: {missing or "ready"}' for host, missing in sorted(found.items())]
            state = '; '.join(states) or 'there is none'
        # Nova may be slow while hypervisors are tried out.
        except OSError as error:
            state = error
        if time.monotonic() - begun > seconds:
            sys.exit(f'not {count} hypervisors in service in {zone} after {seconds} s: {state}')
        # Nova has no way to wait for it.
        time.sleep(0.5)


if __name__ == '__main__':
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
