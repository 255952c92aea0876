"""The hypervisors: Nova's own fake driver, with guests that outlive a service and faults on demand.
"""
import json
import sys
import threading
import types
import uuid

import nova.virt
from nova import context, exception, objects
from nova.compute import power_state, task_states, vm_states
from nova.virt import fake

from common import DEVICE

# Changed by the control port.
KNOBS = {
    # How long each live migration takes.
    'live_migration_seconds': 0.0,
    # Servers, or source hosts, whose live migration does not end by itself: until it is aborted or
    # forced to complete, or the knob is turned back.
    'hang_live_migration': [],
    # Servers, or source hosts, whose live migration fails at its end.
    'fail_live_migration': [],
    # Target hosts where every live migration fails at its end.
    'fail_live_migration_to': [],
    # Servers, or source hosts, that are in ERROR after a live migration that failed or was aborted,
    # as Nova 33 leaves them although their guests run on.
    'error_after_live_migration': [],
    # Servers, or source hosts, whose live migration cannot be aborted.
    'refuse_abort': [],
    # Servers, or source hosts, with whose live migration nova-conductor dies: before it has made a
    # record of it.
    'lose_live_migration': [],
    # The same, after it has made the record and reserved resources on the target.
    'lose_live_migration_late': [],
    # Servers, or hosts, where a start of a guest (create, evacuate, cold migrate) fails.
    'fail_spawn': [],
    # Servers, or hosts, where a start of a guest does not end: the server stays in BUILD until the
    # knob is turned back or the server is to be deleted.
    'hang_spawn': [],
    # Servers, or hosts, whose guests write nothing to their consoles.
    'silent_console': [],
    # Servers whose requests (migrate, evacuate, unshelve) the conductor takes and does not begin,
    # until the knob is turned back. When the conductor is killed meanwhile, the request is lost:
    # the server keeps its task state, and there is no record of a migration.
    'hang_conductor': [],
    # Servers for whose migration, live or cold, the conductor makes a record and then does nothing,
    # until the knob is turned back. The hosts have not heard of it.
    'hang_conductor_after_record': [],
}

# host -> {server: guest}. They belong to the host and not to its service, which may be stopped.
GUESTS = {}
# host -> the driver of the service that runs now.
DRIVERS = {}
# Called with (host, server) for each guest that a host gets.
WATCHERS = []


def recall(host, lost):
    """After a restart of this process: the guests that the database says the host has."""
    guests = GUESTS.setdefault(host, {})
    for server in objects.InstanceList.get_by_host(context.get_admin_context(), host):
        if server.launched_at and not server.deleted and server.uuid not in lost:
            guests[server.uuid] = fake.FakeInstance(
                server.name, server.power_state or power_state.SHUTDOWN, server.uuid)


def lose(host):
    """The machine died: its guests are gone."""
    return list(GUESTS.pop(host, {}))


class Migration:
    """A live migration under way, as its source sees it."""

    def __init__(self):
        self.changed = threading.Event()
        self.end = None

    def finish(self, end):
        self.end = end
        self.changed.set()


class Driver(fake.FakeDriver):
    vcpus, memory_mb, local_gb = 64, 262144, 4000

    def init_host(self, host):
        super().init_host(host)
        self.instances = GUESTS.setdefault(host, {})
        self.migrations = {}
        self.dead = threading.Event()
        DRIVERS[host] = self

    @staticmethod
    def node_uuid(name):
        # The same at each start, so that resource providers keep their ids.
        return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))

    def get_available_resource(self, nodename):
        devices = [{
            'address': f'0000:81:00.{number}', 'dev_type': 'type-PCI', 'status': 'available',
            'label': 'lab', 'parent_addr': None, 'numa_node': None, **DEVICE,
        } for number in range(2)]
        return {**super().get_available_resource(nodename), 'uuid': self.node_uuid(nodename),
                'pci_passthrough_devices': json.dumps(devices)}

    def get_nodenames_by_uuid(self, refresh=False):
        return {self.node_uuid(name): name for name in self.get_available_nodes()}

    def get_host_uptime(self):
        return ' 10:00:00 up 1 day,  1:00,  0 users,  load average: 0.00, 0.00, 0.00'

    def chosen(self, knob, instance):
        return instance.uuid in KNOBS[knob] or self._host in KNOBS[knob]

    def spawn(self, context, instance, *args, **kwargs):
        self.hang(context, instance)
        if self.chosen('fail_spawn', instance):
            raise exception.InstanceDeployFailure(reason=f'asked to fail on {self._host}')
        super().spawn(context, instance, *args, **kwargs)
        for watcher in WATCHERS:
            watcher(self._host, instance.uuid)

    def hang(self, context, instance):
        # The delete itself waits for this start, so it cannot tell.
        while self.chosen('hang_spawn', instance):
            task = objects.Instance.get_by_uuid(context, instance.uuid).task_state
            if task == task_states.DELETING:
                raise exception.UnexpectedDeletingTaskStateError(
                    instance_uuid=instance.uuid, expected='spawning', actual=task)
            if self.dead.wait(0.2):
                raise exception.InstanceDeployFailure(reason=f'{self._host} died')

    def get_console_output(self, context, instance):
        if self.chosen('silent_console', instance):
            return ''
        # As a real guest that got its name from Nova: the last thing is where one logs in.
        return f'fake guest on {self._host}\n\n{instance.hostname} login: '

    def live_migration(self, context, instance, dest, post_method, recover_method,
                       block_migration=False, migrate_data=None):
        migration = self.migrations[instance.uuid] = Migration()
        migration.changed.wait(KNOBS['live_migration_seconds'])
        while self.chosen('hang_live_migration', instance) and not migration.changed.wait(0.2):
            pass
        self.migrations.pop(instance.uuid, None)
        if migration.end == 'dead':
            # The service died with the migration under way: nobody brings it to an end.
            return
        if migration.end == 'aborted':
            recover_method(context, instance, dest, migrate_data, migration_status='cancelled')
            self.leave_error(instance)
        elif (self.chosen('fail_live_migration', instance)
              or dest in KNOBS['fail_live_migration_to']):
            recover_method(context, instance, dest, migrate_data)
            self.leave_error(instance)
        else:
            post_method(context, instance, dest, block_migration, migrate_data)

    def leave_error(self, instance):
        if self.chosen('error_after_live_migration', instance):
            instance.vm_state = vm_states.ERROR
            instance.save()

    def live_migration_abort(self, instance):
        if self.chosen('refuse_abort', instance):
            raise exception.NovaException('asked to refuse the abort')
        if instance.uuid in self.migrations:
            self.migrations[instance.uuid].finish('aborted')

    def live_migration_force_complete(self, instance):
        if instance.uuid in self.migrations:
            self.migrations[instance.uuid].finish('completed')

    def post_live_migration(self, context, instance, block_device_info, migrate_data=None):
        self.destroy(context, instance, None, block_device_info)

    def die(self):
        self.dead.set()
        for migration in list(self.migrations.values()):
            migration.finish('dead')


# Nova loads drivers by name from below nova.virt.
nova.virt.lab = sys.modules['nova.virt.lab'] = types.ModuleType('nova.virt.lab')
nova.virt.lab.Driver = Driver
