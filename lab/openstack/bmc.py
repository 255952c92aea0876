"""A BMC per node: the Redfish emulator of sushy-tools, with nodes of the lab behind it.

usage: bmc.py SETTINGS

All BMCs are one process. Each node has a port of its own, and a request sees only the node that
its port belongs to: one System with the node's name as its Id, and one Manager.
"""
import json
import os
import socket
import sys
import threading

with open(sys.argv[1]) as file:
    SETTINGS = json.load(file)
sys.path.insert(0, SETTINGS['packages'])

import bcrypt  # noqa: E402
import flask  # noqa: E402
import waitress  # noqa: E402
from sushy_tools import error  # noqa: E402
from sushy_tools.emulator import main as emulator  # noqa: E402
from sushy_tools.emulator.resources import managers  # noqa: E402
from sushy_tools.emulator.resources.systems import base  # noqa: E402

# The supervisor answers at once when it is well. A BMC that waits longer helps nobody.
ANSWER_SECONDS = 5
# Switching on and pulling the plug take a moment.
SWITCH_SECONDS = 30

NODES = {str(node['port']): node for node in SETTINGS['nodes']}


class NoAnswer(error.FishyError):
    def __init__(self, reason):
        super().__init__(f"the lab's supervisor does not answer: {reason}", 503)


class Call:
    """A request to the lab's supervisor: lines of JSON on its control socket."""

    def __init__(self, request, seconds=ANSWER_SECONDS):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(seconds)
        try:
            self.socket.connect(SETTINGS['supervisor'])
            self.socket.sendall(json.dumps(request).encode() + b'\n')
            self.lines = self.socket.makefile()
        except OSError as failure:
            self.socket.close()
            raise NoAnswer(failure) from failure

    def next(self):
        """The next line. The first one comes as soon as the request is taken."""
        try:
            line = self.lines.readline()
        except OSError as failure:
            raise NoAnswer(failure) from failure
        if not line:
            raise NoAnswer('it closed the connection')
        answer = json.loads(line)
        if isinstance(answer, dict) and 'error' in answer:
            raise error.Conflict(answer['error'])
        return answer

    def result(self, seconds):
        """The last line: what is not progress."""
        self.socket.settimeout(seconds)
        while True:
            answer = self.next()
            if not isinstance(answer, dict) or 'progress' not in answer:
                return answer

    def close(self):
        self.socket.close()


def observe(name):
    """What the supervisor knows of a node."""
    call = Call({'request': 'status'})
    try:
        status = call.result(ANSWER_SECONDS)['status']
    finally:
        call.close()
    for node in status['nodes']:
        if node['name'] == name:
            return node
    raise error.NotFound(f'the lab has no node {name} now')


def switch(name, action):
    """Changes a node's power and waits until it has happened."""
    call = power(name, action)
    try:
        call.result(SWITCH_SECONDS)
    finally:
        call.close()


def ask(name, action):
    """Asks the node's operating system; whether and when it follows is its own affair."""
    call = power(name, action)
    try:
        call.next()
    except Exception:
        call.close()
        raise

    # Somebody has to listen until the end, or the supervisor would notice that nobody does.
    def listen():
        try:
            call.result(None)
        except Exception as failure:
            emulator.app.logger.warning('%s: power %s: %s', name, action, failure)
        call.close()

    threading.Thread(target=listen, daemon=True).start()


def power(name, action):
    return Call({'request': 'power', 'node': name, 'action': action, 'wait': False})


class Systems(base.AbstractSystemsDriver):
    """The node behind the port of this request. All but its power is only remembered."""

    driver = '<lab>'

    def __init__(self):
        self.remembered = {}

    @property
    def node(self):
        return NODES[flask.request.environ['SERVER_PORT']]

    @property
    def systems(self):
        return [self.node['name']]

    def own(self, identity):
        """The node, if it is called so here."""
        node = self.node
        if identity == node['name']:
            return node
        if identity == node['uuid']:
            raise error.AliasAccessError(node['name'])
        raise error.NotFound(f'this BMC has no system {identity}')

    def uuid(self, identity):
        return self.own(identity)['uuid']

    def name(self, identity):
        return self.own(identity)['name']

    def get_power_state(self, identity):
        return 'On' if observe(self.name(identity))['on'] else 'Off'

    def set_power_state(self, identity, state):
        name = self.name(identity)
        seen = observe(name)
        on = seen['on']
        if state == 'PushPowerButton':
            state = 'GracefulShutdown' if on else 'On'
        if 'Restart' in str(state) and not on:
            raise error.Conflict(f'{name} is off')
        match state:
            case 'On' | 'ForceOn':
                switch(name, 'on')
            case 'ForceOff':
                switch(name, 'loss')
            case 'ForceRestart':
                switch(name, 'loss')
                switch(name, 'on')
            case 'GracefulShutdown' | 'GracefulRestart':
                # A machine that hangs or is off hears nothing, and its BMC cannot tell.
                if on and not seen.get('frozen'):
                    ask(name, 'off' if state == 'GracefulShutdown' else 'reboot')
            case None:
                raise error.BadRequest('ResetType is missing')
            case _:
                raise error.NotSupportedError(f'ResetType {state} is not supported')

    def recall(self, identity, what, default):
        return self.remembered.get((self.name(identity), what), default)

    def remember(self, identity, what, value):
        self.remembered[self.name(identity), what] = value

    def get_boot_device(self, identity):
        return self.recall(identity, 'boot device', 'Hdd')

    def set_boot_device(self, identity, boot_source):
        self.remember(identity, 'boot device', boot_source)

    def get_boot_mode(self, identity):
        return self.recall(identity, 'boot mode', 'UEFI')

    def set_boot_mode(self, identity, boot_mode):
        self.remember(identity, 'boot mode', boot_mode)

    def get_secure_boot(self, identity):
        return self.recall(identity, 'secure boot', False)

    def set_secure_boot(self, identity, secure):
        self.remember(identity, 'secure boot', secure)

    def get_boot_image(self, identity, device):
        return self.recall(identity, device, (None, False, False))

    def set_boot_image(self, identity, device, boot_image=None, write_protected=True):
        self.remember(identity, device, (boot_image, write_protected, bool(boot_image)))

    def get_nics(self, identity):
        self.own(identity)
        return []


class Managers(managers.FakeDriver):
    """The BMC itself. Its Id is the node's UUID, which the emulator puts into its links."""

    @property
    def managers(self):
        return [self._systems.node['uuid']]

    def get_manager(self, identity):
        node = self._systems.node
        if identity not in (node['name'], node['uuid']):
            raise error.NotFound(f'this BMC is not {identity}')
        return {'Id': node['uuid'], 'UUID': node['uuid'], 'Name': f"{node['name']}-Manager"}

    def get_managed_systems(self, manager):
        return self._systems.systems

    def get_managed_chassis(self, manager):
        return self._chassis.chassis

    def get_managers_for_system(self, identity):
        return [self._systems.uuid(identity)]


def protect(user, password):
    """The emulator takes passwords from a file, and only as bcrypt hashes."""
    # Each request is checked anew; the least work that bcrypt takes is enough here.
    hashed = bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()
    path = os.path.join(SETTINGS['dir'], 'htpasswd')
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 'w') as file:
        file.write(f'{user}:{hashed}\n')
    return path


def ready():
    """Tells whoever waits for this process. A process that is started again has nobody waiting."""
    try:
        pipe = os.open(SETTINGS['ready'], os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return
    os.write(pipe, b'ready\n')
    os.close(pipe)


def main():
    app = emulator.app
    app.configure(extra_config={
        'SUSHY_EMULATOR_AUTH_FILE': protect(SETTINGS['user'], SETTINGS['password']),
        'SUSHY_EMULATOR_STATE_DIR': SETTINGS['dir'],
    })
    # sushy-tools knows its own drivers only, and asks the application for them.
    systems = Systems()
    emulator.Application.systems = systems
    emulator.Application.managers = Managers(app.config, app.logger, systems, app.chassis)
    server = waitress.create_server(
        app, listen=' '.join(f"{SETTINGS['address']}:{port}" for port in NODES),
        threads=max(4, len(NODES)), ident=None, clear_untrusted_proxy_headers=True)
    ready()
    server.run()


main()
