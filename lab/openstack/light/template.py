"""Makes the databases and keys of one half, once; each lab starts with a copy.

usage: template.py SETTINGS identity|nova
"""
import os
import sqlite3
import sys
import uuid

import configuration
from common import (ETC, SETTINGS, TEST_AGGREGATE, TEST_DOMAIN, TEST_PROJECT, TEST_PROJECT_ID, ZONE,
                    database, database_url)

REGION = SETTINGS['region']


def create(*names):
    # Readers do not wait for writers in this mode. It stays with the file.
    for name in names:
        db = sqlite3.connect(database(name))
        db.execute('pragma journal_mode = wal').fetchall()
        db.close()


def close(*names):
    """Moves everything into the database files themselves, which alone are copied."""
    for name in names:
        db = sqlite3.connect(database(name), timeout=60)
        busy, _, _ = db.execute('pragma wal_checkpoint(truncate)').fetchone()
        if busy:
            sys.exit(f'{name}: somebody still writes')
        db.close()


def identity():
    sys.argv = ['keystone-manage']
    create('keystone', 'placement')
    keystone()
    placement()
    close('keystone', 'placement')


def keystone():
    import keystone.conf
    from keystone.cmd.bootstrap import Bootstrapper
    from keystone.common import fernet_utils, provider_api, sql
    from keystone.common.sql import upgrades

    conf = keystone.conf.CONF
    keystone.conf.configure()
    sql.initialize()
    conf(args=['--config-file', ETC + '/keystone.conf'], project='keystone')
    upgrades.offline_sync_database_to_version()
    for group in ('fernet_tokens', 'credential'):
        path = conf[group].key_repository
        os.makedirs(path, mode=0o700, exist_ok=True)
        fernet_utils.FernetUtils(path, 3, group).initialize_key_repository()

    admin = Bootstrapper()
    admin.admin_username = SETTINGS['username']
    admin.admin_password = SETTINGS['password']
    admin.project_name = SETTINGS['project']
    admin.admin_role_name = 'admin'
    admin.region_id = REGION
    admin.service_name = 'keystone'
    admin.immutable_roles = True
    admin.public_url = admin.internal_url = admin.admin_url = 'http://127.0.0.1:@identity@/v3'
    admin.bootstrap()

    api = provider_api.ProviderAPIs
    project = uuid.uuid4().hex
    api.resource_api.create_project(project, {
        'id': project, 'name': 'service', 'domain_id': 'default', 'enabled': True,
        'description': ''})
    for name in ('nova', 'placement', 'neutron'):
        user = api.identity_api.create_user({
            'name': name, 'domain_id': 'default', 'enabled': True,
            'password': SETTINGS['servicePassword']})
        for role in (admin.admin_role_id, admin.service_role_id):
            api.assignment_api.add_role_to_user_and_project(user['id'], project, role)
    domain = uuid.uuid4().hex
    api.resource_api.create_domain(domain, {
        'id': domain, 'name': TEST_DOMAIN, 'enabled': True, 'description': ''})
    api.resource_api.create_project(TEST_PROJECT_ID, {
        'id': TEST_PROJECT_ID, 'name': TEST_PROJECT, 'domain_id': domain, 'enabled': True,
        'description': ''})
    api.assignment_api.add_role_to_user_and_project(
        admin.admin_user_id, TEST_PROJECT_ID, admin.admin_role_id)
    for kind, name, tail in (('compute', 'nova', '/v2.1'), ('placement', 'placement', ''),
                             ('network', 'network-stub', ''), ('image', 'image-stub', '')):
        service = uuid.uuid4().hex
        api.catalog_api.create_service(
            service, {'id': service, 'type': kind, 'name': name, 'enabled': True})
        for interface in ('public', 'internal', 'admin'):
            endpoint = uuid.uuid4().hex
            api.catalog_api.create_endpoint(endpoint, {
                'id': endpoint, 'service_id': service, 'interface': interface, 'enabled': True,
                'region_id': REGION, 'url': f'http://127.0.0.1:@{kind}@{tail}'})


def placement():
    from oslo_config import cfg
    from placement import conf, db_api
    from placement.db.sqlalchemy import migration

    config = cfg.ConfigOpts()
    conf.register_opts(config)
    config(['--config-file', ETC + '/placement.conf'], project='placement')
    db_api.configure(config)
    migration.upgrade('head')


def nova():
    create('nova_api', 'nova_cell0', 'nova')
    from nova import monkey_patch
    monkey_patch.patch(backend='threading')
    from nova import config, context, objects
    from nova.cmd import manage

    config.parse_args(['nova-manage', '--config-file', ETC + '/nova.conf'])
    objects.register_all()
    manage.ApiDbCommands().sync()
    cells = manage.CellV2Commands()
    cells.map_cell0(database_connection=database_url('nova_cell0'))
    manage.DbCommands().sync()
    cells.create_cell(
        name='cell1', database_connection=database_url('nova'), transport_url='fake:///')
    admin = context.get_admin_context()
    # Room for a disk of its own, for servers without an image.
    objects.Flavor(
        admin, name='m1.tiny', flavorid='1', memory_mb=128, vcpus=1, root_gb=0, ephemeral_gb=1,
        swap=0, rxtx_factor=1.0, vcpu_weight=0, disabled=False, is_public=True, extra_specs={},
        projects=[]).create()
    for name, metadata in ((ZONE, {'availability_zone': ZONE}),
                           (TEST_AGGREGATE, {'filter_tenant_id': TEST_PROJECT_ID})):
        objects.Aggregate(admin, name=name, metadata=metadata).create()
    close('nova_api', 'nova_cell0', 'nova')


half = sys.argv[2]
getattr(configuration, half)()
{'identity': identity, 'nova': nova}[half]()
