"""The control port: what tests do to the hosts. JSON over HTTP.

GET    /hosts                        what runs, and which guests are where
POST   /hosts {"name": "hv4"}        adds a host and starts it
POST   /hosts/NAME/start             starts its compute service
POST   /hosts/NAME/stop              silences the service; its guests run on
POST   /hosts/NAME/kill              the machine loses its power, and its guests
GET    /cell                         whether the database of Nova's cell runs
POST   /cell/stop                    stops it; Nova's API database stays available
POST   /cell/start                   starts it again
GET    /conductor                    whether nova-conductor runs, and whose requests hang in it
POST   /conductor/kill               kills it; what it works on is never finished
POST   /conductor/start              starts it; it takes the requests that came meanwhile
GET    /knobs                        what goes wrong on purpose; see hypervisor.KNOBS
PATCH  /knobs {"fail_spawn": []}     changes some of them
"""
import http.server
import json
import threading


class Refused(Exception):
    def __init__(self, status, reason):
        super().__init__(reason)
        self.status = status


def serve(port, hosts, cell, conductor, knobs):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = 'HTTP/1.1'

        def handle_request(self):
            try:
                length = int(self.headers.get('Content-Length') or 0)
                body = json.loads(self.rfile.read(length) or b'{}')
                parts = self.path.strip('/').split('/')
                status = 200
                answer = respond(self.command, parts, body, hosts, cell, conductor, knobs)
            except Refused as refusal:
                status, answer = refusal.status, {'error': str(refusal)}
            except ValueError as error:
                status, answer = 400, {'error': f'not JSON: {error}'}
            except Exception as error:
                status, answer = 500, {'error': repr(error)}
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header('Content-Type', 'application/json')
            self.send_header('Content-Length', str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = handle_request

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(('127.0.0.1', port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True, name='control').start()


def respond(method, parts, body, hosts, cell, conductor, knobs):
    match method, parts:
        case 'GET', ['hosts']:
            return hosts.list()
        case 'POST', ['hosts']:
            name = body.get('name')
            if not isinstance(name, str) or not name:
                raise Refused(400, 'a host needs a name')
            hosts.add(name)
            return hosts.list()[name]
        case 'POST', ['hosts', name, ('start' | 'stop' | 'kill') as verb]:
            getattr(hosts, verb)(name)
            return hosts.list()[name]
        case 'GET', ['cell']:
            return {'running': not cell.stopped}
        case 'POST', ['cell', ('start' | 'stop') as verb]:
            cell.stopped = verb == 'stop'
            return {'running': not cell.stopped}
        case 'GET', ['conductor']:
            return conductor.state()
        case 'POST', ['conductor', ('start' | 'kill') as verb]:
            getattr(conductor, verb)()
            return conductor.state()
        case 'GET', ['knobs']:
            return knobs
        case 'PATCH', ['knobs']:
            return turn(knobs, body)
    raise Refused(404, f'no such thing: {method} /{"/".join(parts)}')


def turn(knobs, changes):
    checked = {}
    for knob, value in changes.items():
        if knob not in knobs:
            raise Refused(400, f'there is no knob {knob}; there are: {", ".join(knobs)}')
        if isinstance(knobs[knob], list):
            if not isinstance(value, list):
                raise Refused(400, f'{knob} is a list of names')
            checked[knob] = value
        elif isinstance(value, (int, float)) and value >= 0:
            checked[knob] = float(value)
        else:
            raise Refused(400, f'{knob} is a number of seconds')
    knobs.update(checked)
    return knobs
