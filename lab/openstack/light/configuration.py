"""Writes the configuration files of the services, and points the copied databases at this run."""
import json
import os
import shutil
import sqlite3

from common import DEVICE, DIR, ETC, PORTS, SETTINGS, database, database_url

REGION = SETTINGS['region']
IDENTITY_URL = f"http://127.0.0.1:{PORTS['identity']}/v3"


def account(user):
    """How a service logs in."""
    return {
        'auth_url': IDENTITY_URL,
        'auth_type': 'password',
        'username': user,
        'password': SETTINGS['servicePassword'],
        'project_name': 'service',
        'user_domain_name': 'Default',
        'project_domain_name': 'Default',
        'region_name': REGION,
    }


def sql(name):
    # A lab's data need not survive a power loss of the machine.
    return {'connection': database_url(name), 'sqlite_synchronous': 'false'}


# Each host asks for the same few things again and again.
CACHE = {'enabled': 'true', 'backend': 'oslo_cache.dict'}
QUIET = ('amqp=WARN,sqlalchemy=WARN,oslo_messaging=INFO,requests=WARN,urllib3=WARN,'
         'stevedore=CRITICAL,keystonemiddleware=WARN,neutronclient=ERROR')


def write(name, sections):
    os.makedirs(ETC, exist_ok=True)
    lines = []
    for section, options in sections.items():
        lines.append(f'[{section}]')
        lines.extend(f'{option} = {value}' for option, value in options.items())
    with open(os.path.join(ETC, name), 'w') as file:
        file.write('\n'.join(lines) + '\n')


def identity():
    keys = os.path.join(DIR, 'keys')
    write('keystone.conf', {
        'DEFAULT': {'use_stderr': 'true', 'default_log_levels': QUIET},
        'database': sql('keystone'),
        'fernet_tokens': {'key_repository': keys + '/fernet'},
        # Else Keystone would look for them below /etc.
        'fernet_receipts': {'key_repository': keys + '/fernet'},
        'credential': {'key_repository': keys + '/credential'},
        'token': {'expiration': SETTINGS['tokenSeconds']},
        # The least that bcrypt takes: these passwords protect nothing.
        'identity': {'password_hash_rounds': '4'},
        'cache': CACHE,
    })
    write('placement.conf', {
        'DEFAULT': {'use_stderr': 'true'},
        'placement_database': sql('placement'),
        'keystone_authtoken': {'www_authenticate_uri': IDENTITY_URL, **account('placement')},
    })


def nova():
    state = os.path.join(DIR, 'state')
    os.makedirs(os.path.join(state, 'locks'), exist_ok=True)
    # Nova refuses to start a known service without this file. Here it says nothing: one process
    # holds all hosts, and the driver tells each one's id.
    with open(os.path.join(state, 'compute_id'), 'w') as file:
        file.write('00000000-0000-4000-8000-000000000000')
    os.makedirs(ETC, exist_ok=True)
    paste = os.path.join(ETC, 'api-paste.ini')
    shutil.copyfile(os.path.join(SETTINGS['packages'], 'etc/nova/api-paste.ini'), paste)
    write('nova.conf', {
        'DEFAULT': {
            'host': 'control',
            'use_stderr': 'true',
            'default_log_levels': QUIET,
            'state_path': state,
            'transport_url': 'fake:///',
            'my_ip': '127.0.0.1',
            'compute_driver': 'lab.Driver',
            'report_interval': SETTINGS['reportSeconds'],
            'service_down_time': SETTINGS['downSeconds'],
            'max_concurrent_live_migrations': SETTINGS['concurrentLiveMigrations'],
            'cpu_allocation_ratio': '16.0',
            'ram_allocation_ratio': '1.0',
            'periodic_fuzzy_delay': '0',
            'update_resources_interval': '30',
            # Shelved servers stay on their hosts until somebody lets go of them.
            'shelved_offload_time': '-1',
            # Nothing behind Nova's back ever changes a guest or its network.
            'sync_power_state_interval': '-1',
            'heal_instance_info_cache_interval': '-1',
        },
        # Costs time and only checks Nova against itself.
        'api': {'response_validation': 'ignore'},
        'wsgi': {'api_paste_config': paste},
        # Nova's own list, and the one that keeps other projects away from hosts under test.
        'filter_scheduler': {'enabled_filters': (
            'ComputeFilter,ComputeCapabilitiesFilter,ImagePropertiesFilter,'
            'ServerGroupAntiAffinityFilter,ServerGroupAffinityFilter,'
            'PciPassthroughFilter,AggregateMultiTenancyIsolation')},
        'pci': {'device_spec': json.dumps(DEVICE),
                'alias': json.dumps({**DEVICE, 'name': 'lab-device', 'device_type': 'type-PCI'})},
        'api_database': sql('nova_api'),
        'database': sql('nova'),
        'oslo_concurrency': {'lock_path': os.path.join(state, 'locks')},
        'keystone_authtoken': {'www_authenticate_uri': IDENTITY_URL, **account('nova')},
        'service_user': {'send_service_user_token': 'false', **account('nova')},
        'placement': account('placement'),
        'neutron': account('neutron'),
        'glance': {'endpoint_override': f"http://127.0.0.1:{PORTS['stub']}"},
        'cache': CACHE,
        'quota': {'instances': '-1', 'cores': '-1', 'ram': '-1'},
    })


def point_catalog():
    """The template's catalog has marks in place of ports. A second time changes nothing."""
    with sqlite3.connect(database('keystone'), timeout=60) as db:
        for kind, port in (('identity', 'identity'), ('compute', 'compute'),
                           ('placement', 'placement'), ('network', 'stub'), ('image', 'stub')):
            db.execute('update endpoint set url = replace(url, ?, ?)',
                       (f'@{kind}@', str(PORTS[port])))


def point_cells():
    """Nova keeps the paths of its cells' databases in a database."""
    with sqlite3.connect(database('nova_api'), timeout=60) as db:
        for cell, name in (('cell0', 'nova_cell0'), ('cell1', 'nova')):
            db.execute('update cell_mappings set database_connection = ? where name = ?',
                       (database_url(name), cell))
