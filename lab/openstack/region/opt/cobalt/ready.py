"""ready.py HYPERVISORS SUBNET TEST_SUBNET SECONDS: makes the tenant networks, then waits until that
many hypervisors can take servers.

Can be run again at any time. Prints a line for each thing that is ready.
"""

import sys
import time

from api import Cloud

NETWORK = 'lab'
# Where hypervisors are tried out; its network has its name.
TEST_DOMAIN, TEST_PROJECT = 'cc3test', 'test'


def network(cloud, name, project, cidr):
    """A network of a project. Its subnet has a gateway: without one OVN answers no DHCP."""
    def ensure(kind, wanted):
        wanted['project_id'] = project
        query = '&'.join(f'{key}={wanted[key]}' for key in ('project_id', 'name', 'network_id')
                         if key in wanted)
        found = cloud.call('GET', 'network', f'/v2.0/{kind}s?{query}')
        if not found[f'{kind}s']:
            found[f'{kind}s'] = [cloud.call('POST', 'network', f'/v2.0/{kind}s', {kind: wanted})[kind]]
        return found[f'{kind}s'][0]

    net = ensure('network', {'name': name})
    ensure('subnet', {'name': name, 'network_id': net['id'], 'ip_version': 4, 'cidr': cidr})
    return True


def test_network(cloud, cidr):
    domains = cloud.call('GET', 'identity', f'/domains?name={TEST_DOMAIN}')['domains']
    query = f'name={TEST_PROJECT}&domain_id={domains[0]["id"]}'
    projects = cloud.call('GET', 'identity', f'/projects?{query}')['projects']
    return network(cloud, TEST_PROJECT, projects[0]['id'], cidr)


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


def main(count, cidr, test_cidr, seconds):
    begun, problem, cloud = time.monotonic(), None, None
    stages = [
        ('network', lambda cloud: network(cloud, NETWORK, cloud.project, cidr)),
        ('test network', lambda cloud: test_network(cloud, test_cidr)),
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
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
