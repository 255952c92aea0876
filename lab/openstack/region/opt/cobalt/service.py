"""service.py NAME: one OpenStack service, as one process that tells systemd when it is ready."""

import gc
import importlib
import os
import signal
import sys

import notify
import patches

# The WSGI applications: module, port, threads.
APPLICATIONS = {
    'keystone': ('keystone.wsgi.api', 5000, 8),
    'placement': ('placement.wsgi.api', 8778, 8),
    'glance-api': ('glance.wsgi.api', 9292, 4),
    'neutron-api': ('neutron.wsgi.api', 9696, 8),
    'nova-api': ('nova.wsgi.osapi_compute', 8774, 12),
}
# What only talks over the message bus: the module of its command.
WORKERS = {
    'nova-conductor': 'nova.cmd.conductor',
    'nova-scheduler': 'nova.cmd.scheduler',
    'nova-compute': 'nova.cmd.compute',
}


def ready():
    # What was loaded stays: the collector need not look at it again.
    gc.freeze()
    gc.enable()
    notify.ready()


def serve(name, module, port, threads):
    import waitress

    application = importlib.import_module(module).application
    patches.policies(name)
    server = waitress.create_server(
        application, host='0.0.0.0', port=port, threads=threads, ident=None,
        channel_timeout=600, clear_untrusted_proxy_headers=True,
        max_request_body_size=1 << 33)
    ready()
    server.run()


def work(module):
    from nova import service

    # Nova would fork its workers. One process is enough here, and a child costs memory and
    # hides the service from systemd.
    def start(server, workers=None, no_fork=False):
        server.start()
        ready()

    def wait():
        while True:
            signal.pause()

    service.serve, service.wait = start, wait
    importlib.import_module(module).main()


def main(name):
    # Nothing becomes garbage while modules are loaded, and looking for it takes a fifth of the time.
    gc.disable()
    # Nothing is lost by ending at once: state is in the database, requests are tried again.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    # nova-compute reads consoles, and the first terminal that it opens becomes its own: when that
    # server ends or moves away, the kernel hangs up on us.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # The programs read their own arguments from here.
    sys.argv = [name]
    if name.startswith('nova-'):
        from nova import monkey_patch
        monkey_patch.patch(backend='threading')
        patches.nova()
    if name == 'nova-compute':
        patches.compute()
    if name in APPLICATIONS:
        serve(name, *APPLICATIONS[name])
    else:
        work(WORKERS[name])


if __name__ == '__main__':
    main(sys.argv[1])
