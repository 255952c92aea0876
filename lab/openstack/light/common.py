"""What the processes of the light OpenStack share: settings, databases, HTTP, readiness.

Import it first: it makes the packages importable and tells the services where their
configuration is.
"""
import json
import os
import sys
import threading
import uuid

with open(sys.argv[1]) as file:
    SETTINGS = json.load(file)

DIR = SETTINGS['dir']
PORTS = SETTINGS['ports']
ETC = os.path.join(DIR, 'etc')

# Where hypervisors are tried out: the project, and the aggregate that only it gets servers on. The
# id is the same in every process and every lab.
TEST_DOMAIN, TEST_PROJECT = 'cc3test', 'test'
TEST_PROJECT_ID = uuid.uuid5(uuid.NAMESPACE_DNS, f'{TEST_PROJECT}.{TEST_DOMAIN}').hex
TEST_AGGREGATE = 'tenant_filter_tests'
ZONE = 'lab-a'
# Each host has some of these, for flavors with `pci_passthrough:alias` = `lab-device:1`.
DEVICE = {'vendor_id': '1af4', 'product_id': '1110'}

sys.path.insert(0, SETTINGS['packages'])
for service in ('KEYSTONE', 'PLACEMENT', 'NOVA'):
    os.environ[f'OS_{service}_CONFIG_DIR'] = ETC
# Native threads: everything that runs beside each other here does so in one process.
os.environ['OS_NOVA_DISABLE_EVENTLET_PATCHING'] = 'true'


def keep_entry_points():
    """Makes stevedore keep what the packages offer (a second of work) in a file that comes with
    the template.

    By itself it knows such a file by all of sys.path, this directory included, and leaves a new
    one in the user's cache at each start.
    """
    from stevedore import _cache
    cache = _cache._c
    cache._dir = os.path.join(DIR, 'entry-points')
    data = cache._get_data_for_path
    cache._get_data_for_path = lambda path: data((SETTINGS['packages'],))


keep_entry_points()


def database(name):
    return os.path.join(DIR, name + '.db')


def database_url(name):
    # A writer waits for the one before it; that may take a while on a busy machine.
    return f'sqlite:///{database(name)}?timeout=60'


def queue_writers():
    """Makes writers take SQLite's write lock at their beginning.

    A transaction that reads first and writes later cannot wait for the lock: SQLite refuses the
    upgrade at once with "database is locked". One that begins as a writer waits for its turn.
    """
    import sqlalchemy
    from oslo_db.sqlalchemy import enginefacade

    factory = enginefacade._TransactionFactory
    open_session = factory._create_session
    open_connection = factory._create_connection

    def writer_engine(self):
        if not self._started:
            self._start()
        return self._writer_engine.execution_options(lab_writer=True)

    def create_session(self, mode, bind=None):
        if mode is enginefacade._WRITER and bind is None:
            bind = writer_engine(self)
        return open_session(self, mode, bind)

    def create_connection(self, mode):
        if mode is enginefacade._WRITER:
            return writer_engine(self).connect()
        return open_connection(self, mode)

    factory._create_session = create_session
    factory._create_connection = create_connection

    def begin_immediately(connection, cursor, statement, parameters, context, many):
        if statement == 'BEGIN' and connection.get_execution_options().get('lab_writer'):
            statement = 'BEGIN IMMEDIATE'
        return statement, parameters

    sqlalchemy.event.listen(
        sqlalchemy.engine.Engine, 'before_cursor_execute', begin_immediately, retval=True)


def serve(application, port, threads):
    """Serves a WSGI application on loopback, in threads of its own."""
    import waitress
    # Each host keeps a connection: by default the hundredth would wait for ever.
    server = waitress.create_server(
        application, host='127.0.0.1', port=port, threads=threads, ident=None,
        channel_timeout=600, clear_untrusted_proxy_headers=True,
        connection_limit=4096, asyncore_use_poll=True)
    threading.Thread(target=server.run, daemon=True, name=f'http-{port}').start()


def ready():
    """Tells whoever waits for this process. A process that is started again has nobody waiting."""
    try:
        pipe = os.open(SETTINGS['ready'], os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return
    os.write(pipe, b'ready\n')
    os.close(pipe)


def run_until_killed():
    threading.Event().wait()
