"""Faults of Nova's control plane: the cell's database is stopped, the conductor is killed.

Nova is one process here, so neither has a process of its own that could be stopped. The faults
take effect where Nova would notice them: at each statement for the cell's database, and at each
statement and message of a conductor that was killed.
"""
import functools
import inspect
import threading

import sqlalchemy
from nova.conductor import manager
from nova.conductor.tasks import live_migrate, migrate
from oslo_db import exception

import bus
from common import database
from hypervisor import KNOBS


class CellDatabase:
    """The database of cell1. Nova's API database and cell0 are other files and stay available."""

    def __init__(self):
        self.path = database('nova')
        self.stopped = False

    def check(self, connection):
        if self.stopped and connection.engine.url.database == self.path:
            raise exception.DBConnectionError("Can't connect to the database of cell1")


class Killed(BaseException):
    """Ends a thread of a conductor that was killed.

    Not an Exception: Nova's handlers would clean up, which a dead process cannot do.
    """


class Conductor:
    """nova-conductor. Requests that come while it is dead wait on the bus until it is started."""

    def __init__(self, start):
        self.create = start
        self.lock = threading.Lock()
        self.service = None

    def running(self):
        return self.service is not None

    def state(self):
        return {'running': self.running(), 'hanging': sorted(HANGING)}

    def start(self):
        with self.lock:
            if self.service is None:
                self.service = self.create()

    def kill(self):
        """What it works on is never finished, and nobody hears of it."""
        with self.lock:
            service, self.service = self.service, None
            if service:
                for endpoint in service.manager.additional_endpoints:
                    endpoint.killed.set()
                service.tg.stop()
                service.rpcserver.stop()


CELL_DATABASE = CellDatabase()
# The endpoint of the conductor that the current thread works for.
THREAD = threading.local()
# The servers whose requests hang in the conductor because of a knob.
HANGING = set()


def check_conductor():
    endpoint = getattr(THREAD, 'endpoint', None)
    if endpoint and endpoint.killed.is_set():
        raise Killed()


def hang(knob, server):
    try:
        while server in KNOBS[knob]:
            HANGING.add(server)
            THREAD.endpoint.killed.wait(0.1)
            check_conductor()
    finally:
        HANGING.discard(server)


def watch_statements():
    def before(connection, cursor, statement, parameters, context, many):
        check_conductor()
        CELL_DATABASE.check(connection)

    sqlalchemy.event.listen(sqlalchemy.engine.Engine, 'before_cursor_execute', before)


def watch_messages():
    deliver = bus.Exchange.deliver_message

    def deliver_message(self, *args, **kwargs):
        check_conductor()
        deliver(self, *args, **kwargs)

    bus.Exchange.deliver_message = deliver_message


def watch_conductor():
    endpoint = manager.ComputeTaskManager
    initialize = endpoint.__init__

    def __init__(self):
        initialize(self)
        self.killed = threading.Event()

    endpoint.__init__ = __init__
    for name, method in list(vars(endpoint).items()):
        if inspect.isfunction(method) and not name.startswith('_'):
            setattr(endpoint, name, request(method))


def request(method):
    """A request that the conductor takes from the bus."""
    @functools.wraps(method)
    def work(self, *args, **kwargs):
        outer, THREAD.endpoint = getattr(THREAD, 'endpoint', None), self
        try:
            if 'instance' in kwargs:
                hang('hang_conductor', kwargs['instance'].uuid)
            return method(self, *args, **kwargs)
        finally:
            THREAD.endpoint = outer

    return work


def watch_tasks():
    live = live_migrate.LiveMigrationTask
    execute = live._execute

    def _execute(self):
        hang('hang_conductor_after_record', self.instance.uuid)
        return execute(self)

    live._execute = _execute
    cold = migrate.MigrationTask
    make_record = cold._preallocate_migration

    def _preallocate_migration(self):
        record = make_record(self)
        hang('hang_conductor_after_record', self.instance.uuid)
        return record

    cold._preallocate_migration = _preallocate_migration


watch_statements()
watch_messages()
watch_conductor()
watch_tasks()
