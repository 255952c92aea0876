"""A stub for the network and the image service: what Nova asks of them for servers without ports.

Nothing here is real. There are no networks and no ports, and every image is one empty disk.
"""
import hashlib
import json

DISK = bytes(1 << 20)
WHEN = '2026-01-01T00:00:00Z'


def image(identity):
    return {
        'id': identity, 'name': 'empty', 'status': 'active', 'visibility': 'public',
        'container_format': 'bare', 'disk_format': 'raw', 'size': len(DISK),
        'checksum': hashlib.md5(DISK, usedforsecurity=False).hexdigest(),
        'min_disk': 0, 'min_ram': 0, 'protected': False, 'owner': None, 'tags': [],
        'created_at': WHEN, 'updated_at': WHEN,
        'file': f'/v2/images/{identity}/file', 'schema': '/v2/schemas/image',
    }


def answer(path):
    """The JSON answer to a GET, or None."""
    match path.strip('/').split('/'):
        case [''] | ['v2.0']:
            return {'versions': [{'id': 'v2.0', 'status': 'CURRENT', 'links': []}]}
        case ['v2.0', kind]:
            return {kind.replace('-', '_'): []}
        case ['v2', 'images', identity]:
            return image(identity)
        case ['v2', 'schemas', 'image']:
            properties = {name: {} for name in image('')}
            return {'name': 'image', 'properties': properties, 'additionalProperties': {}}
    return None


def application(environ, start_response):
    path, method = environ['PATH_INFO'], environ['REQUEST_METHOD']
    if method == 'GET' and path.startswith('/v2/images/') and path.endswith('/file'):
        start_response('200 OK', [('Content-Type', 'application/octet-stream'),
                                  ('Content-Length', str(len(DISK)))])
        return [DISK]
    body = answer(path) if method == 'GET' else None
    status = '200 OK'
    if body is None:
        status = '404 Not Found'
        message = f'the stub does not know {method} {path}'
        body = {'NeutronError': {'type': 'NotFound', 'message': message, 'detail': ''}}
    start_response(status, [('Content-Type', 'application/json')])
    return [json.dumps(body).encode()]
