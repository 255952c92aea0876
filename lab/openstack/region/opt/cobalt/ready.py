"""ready.py HYPERVISORS SUBNET SECONDS: makes the tenant network, then waits until that many
hypervisors can take servers.

Can be run again at any time. Prints a line for each thing that is ready.
"""

import sys
import time

from api import Cloud

NETWORK = 'lab'


def network(cloud, cidr):
    """The network `lab`. Its subnet has a gateway: without one OVN answers no DHCP."""
    def ensure(kind, wanted):
        query = '&'.join(f'{key}={wanted[key]}' for key in ('name', 'network_id') if key in wanted)
        found = cloud.call('GET', 'network', f'/v2.0/{kind}s?project_id={cloud.project}&{query}')
        if not found[f'{kind}s']:
            found[f'{kind}s'] = [cloud.call('POST', 'network', f'/v2.0/{kind}s', {kind: wanted})[kind]]
        return found[f'{kind}s'][0]

    net = ensure('network', {'name': NETWORK})
    ensure('subnet', {'name': NETWORK, 'network_id': net['id'], 'ip_version': 4, 'cidr': cidr})
    return True


def admission(cloud):
    """The default security group lets everybody in, so that tests reach the servers."""
    groups = cloud.call(
        'GET', 'network', f'/v2.0/security-groups?project_id={cloud.project}&name=default')
    group = groups['security_groups'][0]
    rule = {'direction': 'ingress', 'ethertype': 'IPv4', 'remote_ip_prefix': '0.0.0.0/0'}
    if not any(rule.items() <= existing.items() for existing in group['security_group_rules']):
        rule['security_group_id'] = group['id']
        cloud.call('POST', 'network', '/v2.0/security-group-rules', {'security_group_rule': rule})
    return True


def image(cloud):
    return bool(cloud.call('GET', 'image', '/v2/images?name=lab-micro')['images'])


def controllers(cloud, count):
    agents = cloud.call('GET', 'network', '/v2.0/agents')['agents']
    return sum(a['alive'] and 'Controller' in a['agent_type'] for a in agents) >= count


def hypervisors(cloud, count):
    # Lists only those that the scheduler has found and mapped into the cell.
    found = cloud.call('GET', 'compute', '/os-hypervisors')['hypervisors']
    return sum(h['state'] == 'up' for h in found) >= count


def candidates(cloud, count):
    found = cloud.call('GET', 'placement', '/allocation_candidates?resources=VCPU:1',
                       **{'OpenStack-API-Version': 'placement 1.39'})
    return len(found['provider_summaries']) >= count


def main(count, cidr, seconds):
    begun, problem, cloud = time.monotonic(), None, None
    stages = [
        ('network', lambda cloud: network(cloud, cidr)),
        ('security group', admission),
        ('images', image),
        (f'{count} OVN controllers', lambda cloud: controllers(cloud, count)),
        (f'{count} hypervisors', lambda cloud: hypervisors(cloud, count)),
        (f'{count} resource providers', lambda cloud: candidates(cloud, count)),
    ]
    while stages:
        name, done = stages[0]
        try:
            cloud = cloud or Cloud()
            if done(cloud):
                print(f'{time.monotonic() - begun:5.1f} {name}', flush=True)
                stages.pop(0)
                problem = None
                continue
        # Services that are still starting refuse, time out or answer in part.
        except (OSError, KeyError, IndexError, ValueError) as error:
            problem = error
        if time.monotonic() - begun > seconds:
            sys.exit(f'not ready after {seconds} s: {name}: {problem or "not there"}')
        # None of these services can be asked to call back.
        time.sleep(0.3)


if __name__ == '__main__':
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
