"""bake.py: databases, users, catalogue, images and flavors, made once for all labs.

Runs in a throw-away root with the configuration of a control plane at 127.0.0.1 and nothing else
running; what stays is /var/lib/mysql, /var/lib/keystone and /var/lib/glance.
Without an argument it does everything; `bake.py PART` is one database, in a process of its own,
because each project wants the one global configuration object.
"""

import os
import shutil
import subprocess
import sys
import uuid

import notify

HERE = os.path.dirname(os.path.abspath(__file__))
DATABASES = ('keystone', 'placement', 'glance', 'neutron', 'nova_api', 'nova_cell0', 'nova')
PORTS = (
    ('compute', 'nova', ':8774/v2.1'),
    ('placement', 'placement', ':8778'),
    ('network', 'neutron', ':9696'),
    ('image', 'glance', ':9292'),
)
# Name, id, memory.
FLAVORS = (('m1.micro', 'm1.micro', 64), ('m1.lab', 'm1.lab', 128), ('m1.tiny', '1', 128))
# Where hypervisors are tried out: the project, and the aggregate that only it gets servers on.
TEST_DOMAIN, TEST_PROJECT = 'cc3test', 'test'
# Known to two processes that run side by side.
TEST_PROJECT_ID = uuid.uuid5(uuid.NAMESPACE_DNS, f'{TEST_PROJECT}.{TEST_DOMAIN}').hex
# Without hosts: who takes hypervisors into service adds them.
AGGREGATES = (
    ('lab-a', {'availability_zone': 'lab-a'}),
    ('tenant_filter_tests', {'filter_tenant_id': TEST_PROJECT_ID}),
)
# Where the guests' files are while this runs.
GUESTS = '/run/guests'


def everything():
    database = start_database()
    # The longest first.
    parts = ('neutron', 'keystone', 'nova', 'glance', 'placement')
    running = [(part, run(part)) for part in parts]
    for part, process in running:
        if process.wait():
            sys.exit(f'making the database of {part} failed')
    services = [notify.start([sys.executable, f'{HERE}/service.py', name], 120)
                for name in ('keystone', 'glance-api')]
    images()
    for process in services:
        process.terminate()
        process.wait()
    database.terminate()
    if database.wait():
        sys.exit('MariaDB did not end well')


def run(part):
    return subprocess.Popen([sys.executable, os.path.abspath(__file__), part])


def start_database():
    data = '/var/lib/mysql'
    for name in os.listdir(data):
        path = f'{data}/{name}'
        shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
    os.makedirs('/run/mysqld', exist_ok=True)
    for path in (data, '/run/mysqld'):
        shutil.chown(path, 'mysql', 'mysql')
    subprocess.run(
        ['mariadb-install-db', '--no-defaults', '--user=mysql', f'--datadir={data}',
         '--skip-test-db', '--auth-root-authentication-method=socket',
         '--innodb-log-file-size=16M'],
        check=True, stdout=subprocess.DEVNULL)
    # There is no catalogue yet that a start could correct.
    database = notify.start(['/usr/sbin/mariadbd', '--init-file=', '--user=mysql'], 60)
    statements = [f'CREATE DATABASE {name}' for name in DATABASES]
    statements += ["CREATE USER openstack@'%' IDENTIFIED BY 'openstack'"]
    statements += [f"GRANT ALL ON {name}.* TO openstack@'%'" for name in DATABASES]
    subprocess.run(['mariadb'], input=';\n'.join(statements), text=True, check=True)
    return database


def keystone():
    import keystone.conf
    from keystone.cmd.bootstrap import Bootstrapper
    from keystone.common import fernet_utils, provider_api, sql
    from keystone.common.sql import upgrades

    conf = keystone.conf.CONF
    keystone.conf.configure()
    sql.initialize()
    conf([], project='keystone')
    upgrades.offline_sync_database_to_version()
    for group in ('fernet_tokens', 'credential'):
        keys = conf[group].key_repository
        os.makedirs(keys, mode=0o700, exist_ok=True)
        fernet_utils.FernetUtils(keys, 3, group).initialize_key_repository()

    bootstrap = Bootstrapper()
    bootstrap.admin_username = bootstrap.admin_password = 'admin'
    bootstrap.project_name = bootstrap.admin_role_name = 'admin'
    bootstrap.region_id = 'RegionOne'
    bootstrap.service_name = 'keystone'
    bootstrap.immutable_roles = True
    bootstrap.public_url = bootstrap.internal_url = bootstrap.admin_url = \
        'http://127.0.0.1:5000/v3'
    bootstrap.bootstrap()

    apis = provider_api.ProviderAPIs
    project = uuid.uuid4().hex
    apis.resource_api.create_project(project, {
        'id': project, 'name': 'service', 'domain_id': 'default', 'enabled': True,
        'description': ''})
    for _, name, _ in PORTS:
        user = apis.identity_api.create_user({
            'name': name, 'domain_id': 'default', 'enabled': True, 'password': 'service'})
        for role in (bootstrap.admin_role_id, bootstrap.service_role_id):
            apis.assignment_api.add_role_to_user_and_project(user['id'], project, role)
    domain = uuid.uuid4().hex
    apis.resource_api.create_domain(domain, {
        'id': domain, 'name': TEST_DOMAIN, 'enabled': True, 'description': ''})
    apis.resource_api.create_project(TEST_PROJECT_ID, {
        'id': TEST_PROJECT_ID, 'name': TEST_PROJECT, 'domain_id': domain, 'enabled': True,
        'description': ''})
    apis.assignment_api.add_role_to_user_and_project(
        bootstrap.admin_user_id, TEST_PROJECT_ID, bootstrap.admin_role_id)
    for kind, name, tail in PORTS:
        service = uuid.uuid4().hex
        apis.catalog_api.create_service(service, {
            'id': service, 'type': kind, 'name': name, 'enabled': True})
        for interface in ('public', 'internal', 'admin'):
            endpoint = uuid.uuid4().hex
            apis.catalog_api.create_endpoint(endpoint, {
                'id': endpoint, 'service_id': service, 'interface': interface, 'enabled': True,
                'region_id': 'RegionOne', 'url': f'http://127.0.0.1{tail}'})


def placement():
    from oslo_config import cfg
    from placement import conf, db_api
    from placement.db.sqlalchemy import migration

    config = cfg.ConfigOpts()
    conf.register_opts(config)
    config([], project='placement')
    db_api.configure(config)
    migration.upgrade('head')


def nova():
    from nova import monkey_patch
    monkey_patch.patch(backend='threading')
    from nova import config, context, objects
    from nova.cmd import manage

    config.parse_args(['nova-manage'])
    objects.register_all()
    manage.ApiDbCommands().sync()
    cells = manage.CellV2Commands()
    # Templates that Nova fills from its own configuration: no address gets into the database.
    url = '{scheme}://{username}:{password}@{hostname}:{port}/%s?{query}'
    # Not behind the relay, which is for the cell with hosts only.
    cells.map_cell0(database_connection=url.replace('{port}', '3306') % 'nova_cell0')
    manage.DbCommands().sync()
    cells.create_cell(name='cell1', database_connection=url % 'nova',
                      transport_url='{scheme}://{username}:{password}@{hostname}:{port}/')
    admin = context.get_admin_context()
    for name, identity, memory in FLAVORS:
        objects.Flavor(
            admin, name=name, flavorid=identity, memory_mb=memory, vcpus=1, root_gb=0,
            ephemeral_gb=0, swap=0, rxtx_factor=1.0, vcpu_weight=0, disabled=False,
            is_public=True, extra_specs={}, projects=[]).create()
    for name, metadata in AGGREGATES:
        objects.Aggregate(admin, name=name, metadata=metadata).create()


def neutron():
    from neutron.db.migration import cli

    sys.argv = ['neutron-db-manage', '--config-file', '/etc/neutron/neutron.conf',
                'upgrade', 'heads']
    cli.main()


def glance():
    from glance.cmd import manage

    sys.argv = ['glance-manage', 'db_sync']
    manage.main()


def images():
    from api import Cloud

    cloud = Cloud()

    def image(name, file, **properties):
        made = cloud.call('POST', 'image', '/v2/images', {
            'name': name, 'container_format': 'bare', 'disk_format': 'raw',
            'visibility': 'public', **properties})
        with open(file, 'rb') as content:
            cloud.call('PUT', 'image', f'/v2/images/{made["id"]}/file', content,
                       **{'Content-Type': 'application/octet-stream'})
        return made['id']

    # Both guests live in memory; Nova wants a disk image all the same.
    disk = '/run/disk.raw'
    with open(disk, 'wb') as empty:
        empty.truncate(1 << 20)
    linux = {'kernel_id': image('lab-linux-kernel', f'{GUESTS}/kernel'),
             'ramdisk_id': image('lab-linux-initrd', f'{GUESTS}/initrd'),
             'os_command_line': os.environ['LINUX_COMMAND_LINE']}
    # The second name is that of the image that hypervisors are tried out with.
    for name in ('lab-linux', 'cirros-kvm'):
        image(name, disk, **linux)
    image('lab-micro', disk, kernel_id=image('lab-micro-kernel', f'{GUESTS}/micro'))


if __name__ == '__main__':
    {'keystone': keystone, 'placement': placement, 'nova': nova, 'neutron': neutron,
     'glance': glance}.get(sys.argv[1] if len(sys.argv) > 1 else None, everything)()
