"""A small client of the OpenStack APIs, for the programs beside it, on the same machine."""

import json
import urllib.error
import urllib.request

AUTH_URL = 'http://127.0.0.1:5000/v3'
DOMAIN = {'name': 'Default'}


class Cloud:
    def __init__(self):
        user = {'name': 'admin', 'domain': DOMAIN, 'password': 'admin'}
        body = {'auth': {
            'identity': {'methods': ['password'], 'password': {'user': user}},
            'scope': {'project': {'name': 'admin', 'domain': DOMAIN}}}}
        self.token = None
        headers, answer = self.send('POST', f'{AUTH_URL}/auth/tokens', body)
        self.token = headers['X-Subject-Token']
        self.project = answer['token']['project']['id']
        self.endpoints = {
            service['type']: endpoint['url'].rstrip('/')
            for service in answer['token']['catalog']
            for endpoint in service['endpoints'] if endpoint['interface'] == 'public'}

    def call(self, method, service, path, body=None, **headers):
        """Calls a service of the catalogue and returns what it answered."""
        return self.send(method, self.endpoints[service] + path, body, headers)[1]

    def send(self, method, url, body=None, headers=None):
        headers = dict(headers or {})
        if self.token:
            headers['X-Auth-Token'] = self.token
        # A file is sent as it is, everything else as JSON.
        if body is not None and not hasattr(body, 'read'):
            body = json.dumps(body).encode()
            headers.setdefault('Content-Type', 'application/json')
        request = urllib.request.Request(url, method=method, data=body, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                content = answer.read()
                return answer.headers, json.loads(content) if content else None
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors='replace')[:500]
            raise OSError(f'{method} {url}: {error.code} {text}') from None
