"""Nova, real: API, conductor, scheduler and a compute service per host, in one process over an
in-process bus. Only the hypervisors are fake.

usage: nova_all.py SETTINGS
"""
import json
import os
import sys
import threading

import common
import configuration
from common import DIR, PORTS, SETTINGS

configuration.nova()
configuration.point_cells()
# Nova reads the arguments of the process.
sys.argv = ['nova-all']
common.queue_writers()

from keystoneauth1 import loading  # noqa: E402


def share_logins():
    """All hosts share one login per service; else each would ask Keystone for tokens of its own."""
    load, logins = loading.load_auth_from_conf_options, {}

    def load_once(conf, group, **options):
        if group not in logins:
            logins[group] = load(conf, group, **options)
        return logins[group]

    loading.load_auth_from_conf_options = load_once


share_logins()

# First of Nova: it reads nova.conf and chooses native threads.
from nova.wsgi.osapi_compute import application  # noqa: E402
import nova.servicegroup.api  # noqa: E402
import nova.servicegroup.drivers.db  # noqa: E402
import os_brick  # noqa: E402
import os_vif  # noqa: E402
from nova import context, objects, service  # noqa: E402
from nova.compute import rpcapi  # noqa: E402
from nova.conductor import manager as conductor_manager  # noqa: E402
from nova.objects import host_mapping  # noqa: E402

import bus  # noqa: E402, F401
import control  # noqa: E402
import faults  # noqa: E402
import hypervisor  # noqa: E402

# A service that comes back would else count as down for five seconds more.
nova.servicegroup.api.INITIAL_REPORTING_DELAY = 0


class Hosts:
    """The compute services. What was asked of them is kept in a file, for a process that is
    killed and started again."""

    def __init__(self):
        self.lock = threading.Lock()
        self.services = {}
        self.path = os.path.join(DIR, 'hosts.json')
        try:
            with open(self.path) as file:
                self.known = json.load(file)
        except FileNotFoundError:
            self.known = {name: {'run': True, 'lost': []} for name in SETTINGS['hosts']}
            self.save()
        self.again = any(self.has_record(name) for name in self.known)

    @staticmethod
    def has_record(name):
        return objects.Service.get_by_host_and_binary(
            context.get_admin_context(), name, 'nova-compute') is not None

    def save(self):
        partial = self.path + '.partial'
        with open(partial, 'w') as file:
            json.dump(self.known, file)
        os.replace(partial, self.path)

    def start_all(self):
        for name, host in self.known.items():
            if self.again:
                hypervisor.recall(name, host['lost'])
            if host['run']:
                self.services[name] = start('nova-compute', 'compute', name, 'compute-alt')
        map_hosts()

    def list(self):
        with self.lock:
            return {name: {'running': name in self.services,
                           'guests': sorted(hypervisor.GUESTS.get(name, {}))}
                    for name in sorted(self.known)}

    def add(self, name):
        with self.lock:
            if name in self.known:
                raise control.Refused(409, f'there is a host {name} already')
            self.known[name] = {'run': True, 'lost': []}
            self.save()
            self.services[name] = start('nova-compute', 'compute', name, 'compute-alt')
            map_hosts()

    def start(self, name):
        with self.lock:
            self.host(name)['run'] = True
            self.save()
            if name not in self.services:
                self.services[name] = start('nova-compute', 'compute', name, 'compute-alt')

    def stop(self, name):
        """The service ends without a word: no heartbeat, no answer. Its guests run on."""
        with self.lock:
            self.silence(name)
            self.save()

    def kill(self, name):
        """The machine loses its power: its guests are gone, too."""
        with self.lock:
            self.silence(name)
            # Nova still has them in its database: recall() must not bring them back.
            self.host(name)['lost'] += hypervisor.lose(name)
            self.save()

    def found(self, name, server):
        """A guest that was lost is there again, evacuated and moved back for example."""
        if server in self.known[name]['lost']:
            with self.lock:
                self.known[name]['lost'].remove(server)
                self.save()

    def silence(self, name):
        self.host(name)['run'] = False
        compute = self.services.pop(name, None)
        if compute:
            hypervisor.DRIVERS[name].die()
            compute.tg.stop()
            compute.rpcserver.stop()
            compute.rpcserver_alt.stop()

    def host(self, name):
        if name not in self.known:
            raise control.Refused(404, f'there is no host {name}')
        return self.known[name]


def start(binary, topic, host, topic_alt=None):
    running = service.Service.create(binary=binary, topic=topic, host=host, topic_alt=topic_alt)
    running.start()
    return running


def map_hosts():
    """What `nova-manage cell_v2 discover_hosts` does: without it nothing is scheduled there."""
    host_mapping.discover_hosts(context.get_admin_context())


def trust_running_services(hosts, conductor):
    """A service that runs here is up, however late its report.

    Reports of many hosts come late when the machine has much else to do, and a test would see
    hosts go down that nobody stopped. A stopped one still goes down by its silence.
    """
    driver = nova.servicegroup.drivers.db.DbDriver
    by_reports = driver.is_up

    def is_up(self, service_ref):
        if service_ref['binary'] == 'nova-conductor':
            runs = conductor.running()
        else:
            runs = service_ref['host'] == 'control' or service_ref['host'] in hosts.services
        return runs or by_reports(self, service_ref)

    driver.is_up = is_up


def lose_live_migrations():
    """nova-conductor dies with what it was asked for: nobody goes on with it or takes it back."""
    begin = conductor_manager.ComputeTaskManager._live_migrate
    hand_over = rpcapi.ComputeAPI.live_migration

    def chosen(knob, instance):
        names = hypervisor.KNOBS[knob]
        return instance.uuid in names or instance.host in names

    def begin_unless_dead(self, context, instance, *args, **kwargs):
        if not chosen('lose_live_migration', instance):
            return begin(self, context, instance, *args, **kwargs)

    def hand_over_unless_dead(self, ctxt, instance, *args, **kwargs):
        if not chosen('lose_live_migration_late', instance):
            return hand_over(self, ctxt, instance, *args, **kwargs)

    conductor_manager.ComputeTaskManager._live_migrate = begin_unless_dead
    rpcapi.ComputeAPI.live_migration = hand_over_unless_dead


objects.register_all()
os_brick.setup(nova.conf.CONF)
os_vif.initialize()
hosts = Hosts()
conductor = faults.Conductor(lambda: start('nova-conductor', 'conductor', 'control'))
trust_running_services(hosts, conductor)
hypervisor.WATCHERS.append(hosts.found)
lose_live_migrations()
conductor.start()
start('nova-scheduler', 'scheduler', 'control')
hosts.start_all()
common.serve(application, PORTS['compute'], threads=16)
control.serve(PORTS['control'], hosts, faults.CELL_DATABASE, conductor, hypervisor.KNOBS)
common.ready()
common.run_until_killed()
