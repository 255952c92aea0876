"""A stub for the network and the image service: what Nova and its users ask of them.

Nothing here is real. There is one network, of the project that tries hypervisors out; a port is a
record that is forgotten with the process; and every image is one empty disk, also one that is made
of a server.
"""
import hashlib
import json
import re
import threading
import urllib.parse
import uuid

from common import TEST_PROJECT, TEST_PROJECT_ID

DISK = bytes(1 << 20)
WHEN = '2026-01-01T00:00:00Z'


def fixed_id(name):
    """The same in each run."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))


# The images that have a name; every other id is an image, too.
IMAGES = {fixed_id(f'{name}.image'): name for name in ('cirros-kvm',)}
NETWORK, SUBNET = fixed_id('test.network'), fixed_id('test.subnet')
OWNER = {'project_id': TEST_PROJECT_ID, 'tenant_id': TEST_PROJECT_ID}
# What the network service has, by kind and id.
THINGS = {
    'networks': {NETWORK: {
        'id': NETWORK, 'name': TEST_PROJECT, 'status': 'ACTIVE', 'admin_state_up': True,
        'shared': False, 'router:external': False, 'subnets': [SUBNET], 'mtu': 1442,
        'port_security_enabled': True, 'provider:network_type': 'geneve', **OWNER}},
    'subnets': {SUBNET: {
        'id': SUBNET, 'name': TEST_PROJECT, 'network_id': NETWORK, 'ip_version': 4,
        'cidr': '192.0.2.0/24', 'gateway_ip': '192.0.2.1', 'enable_dhcp': True,
        'dns_nameservers': [], 'host_routes': [], **OWNER}},
    'ports': {},
}
LOCK = threading.Lock()


def image(identity):
    return {
        'id': identity, 'name': IMAGES.get(identity, 'empty'), 'status': 'active',
        'visibility': 'public', 'container_format': 'bare', 'disk_format': 'raw',
        'size': len(DISK), 'checksum': hashlib.md5(DISK, usedforsecurity=False).hexdigest(),
        'min_disk': 0, 'min_ram': 0, 'protected': False, 'owner': None, 'tags': [],
        'created_at': WHEN, 'updated_at': WHEN,
        'file': f'/v2/images/{identity}/file', 'schema': '/v2/schemas/image',
    }


def images(query):
    """By name, also in Glance's words for several: in:"a","b"."""
    wanted = query.get('name', [None])[0]
    if wanted is not None and wanted.startswith('in:'):
        wanted = re.findall(r'"([^"]*)"|([^,"]+)', wanted[3:])
        wanted = {quoted or plain for quoted, plain in wanted}
    elif wanted is not None:
        wanted = {wanted}
    return [image(identity) for identity, name in IMAGES.items()
            if wanted is None or name in wanted]


def search(kind, query):
    def matches(thing):
        return all(str(thing[key]).lower() in [value.lower() for value in values]
                   for key, values in query.items() if key in thing)

    return [thing for thing in THINGS.get(kind, {}).values() if matches(thing)]


def port(wanted):
    identity = str(uuid.uuid4())
    number = len(THINGS['ports']) % 250 + 2
    return {
        'id': identity, 'name': '', 'status': 'ACTIVE', 'admin_state_up': True,
        'mac_address': f'fa:16:3e:{identity[0:2]}:{identity[2:4]}:{identity[4:6]}',
        'fixed_ips': [{'subnet_id': SUBNET, 'ip_address': f'192.0.2.{number}'}],
        'device_id': '', 'device_owner': '', 'security_groups': [], 'allowed_address_pairs': [],
        'binding:host_id': '', 'binding:vif_type': 'ovs', 'binding:vnic_type': 'normal',
        'binding:vif_details': {}, 'binding:profile': {}, 'port_security_enabled': True,
        **OWNER, **wanted,
    }


def answer(method, path, query, body):
    """The JSON answer, or None."""
    match method, path.strip('/').split('/'):
        case 'GET', [''] | ['v2.0']:
            return {'versions': [{'id': 'v2.0', 'status': 'CURRENT', 'links': []}]}
        case 'GET', ['v2.0', 'quotas', _]:
            return {'quota': {'port': -1}}
        case 'GET', ['v2.0', kind]:
            return {kind.replace('-', '_'): search(kind, query)}
        case 'POST', ['v2.0', 'ports']:
            made = port(body['port'])
            THINGS['ports'][made['id']] = made
            return {'port': made}
        case 'GET', ['v2.0', kind, identity] if identity in THINGS.get(kind, {}):
            return {kind[:-1]: THINGS[kind][identity]}
        case 'PUT', ['v2.0', 'ports', identity] if identity in THINGS['ports']:
            THINGS['ports'][identity].update(body['port'])
            return {'port': THINGS['ports'][identity]}
        case 'DELETE', ['v2.0', 'ports', identity] if identity in THINGS['ports']:
            del THINGS['ports'][identity]
            return {}
        case 'GET', ['v2', 'images']:
            return {'images': images(query), 'schema': '/v2/schemas/images'}
        case 'GET', ['v2', 'images', identity]:
            return image(identity)
        case 'POST', ['v2', 'images']:
            return {**image(str(uuid.uuid4())), 'name': body.get('name'), 'status': 'queued'}
        case 'DELETE', ['v2', 'images', _]:
            return {}
        case 'GET', ['v2', 'schemas', 'image']:
            properties = {name: {} for name in image('')}
            return {'name': 'image', 'properties': properties, 'additionalProperties': {}}
    return None


def application(environ, start_response):
    path, method = environ['PATH_INFO'], environ['REQUEST_METHOD']
    if method == 'GET' and path.startswith('/v2/images/') and path.endswith('/file'):
        start_response('200 OK', [('Content-Type', 'application/octet-stream'),
                                  ('Content-Length', str(len(DISK)))])
        return [DISK]
    query = urllib.parse.parse_qs(environ.get('QUERY_STRING', ''))
    content = environ['wsgi.input'].read(int(environ.get('CONTENT_LENGTH') or 0))
    with LOCK:
        body = answer(method, path, query, json.loads(content or b'{}'))
        data = json.dumps(body)
    status = {'POST': '201 Created', 'DELETE': '204 No Content'}.get(method, '200 OK')
    if body is None:
        status = '404 Not Found'
        message = f'the stub does not know {method} {path}'
        data = json.dumps({'NeutronError': {'type': 'NotFound', 'message': message, 'detail': ''}})
    if method == 'DELETE' and body is not None:
        start_response(status, [])
        return []
    start_response(status, [('Content-Type', 'application/json')])
    return [data.encode()]
