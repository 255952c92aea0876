"""What is different from the released OpenStack, and why."""


def policies(name):
    # Keystone and Nova read their policies at the first request; those that come meanwhile, in
    # other threads, find none and are forbidden. So read them before there are requests.
    if name == 'keystone':
        from keystone.common.rbac_enforcer import enforcer
        shared = enforcer.RBACEnforcer()
        shared.suppress_deprecation_warnings = True
        shared._enforcer.load_rules()
    if name == 'nova-api':
        from nova import policy
        policy.init(suppress_deprecation_warnings=True)


def nova():
    answers_at_once()
    looks_often()


def compute():
    privileged()
    shared_directory()


def answers_at_once():
    # oslo.messaging looks for an RPC answer every half second, because waiting for it blocks an
    # eventlet program. With threads it can wait: a boot takes 3.5 s instead of 12.
    import queue

    import oslo_messaging
    from oslo_messaging._drivers import amqpdriver

    def get(self, msg_id, timeout):
        try:
            return self._queues[msg_id].get(timeout=timeout)
        except queue.Empty:
            raise oslo_messaging.MessagingTimeout(f'no answer to message {msg_id}') from None

    amqpdriver.ReplyWaiters.get = get


def looks_often():
    import nova.conductor.api
    import nova.servicegroup.api

    # A ping before the conductor is there is lost: ask again after 1 s, not 10.
    nova.conductor.api.API.wait_until_ready.__defaults__ = (1, 300)
    # The first sign of life at once, not after 5 s.
    nova.servicegroup.api.INITIAL_REPORTING_DELAY = 0


def privileged():
    # We are root: what needs privileges runs in this process, without a helper for each library.
    import nova.privsep
    import os_brick.privileged
    import vif_plug_ovs.privsep

    for context in (nova.privsep.sys_admin_pctxt, os_brick.privileged.default,
                    vif_plug_ovs.privsep.vif_plug):
        context.set_client_mode(False)


def shared_directory():
    # libvirt takes a plain directory for unshared and refuses to migrate without copying disks.
    # All nodes see the same directory, and Nova has no option to say so.
    import libvirt
    from nova.virt.libvirt import guest

    migrate = guest.Guest.migrate

    def unsafe(self, *arguments, flags=0, **options):
        return migrate(self, *arguments, flags=flags | libvirt.VIR_MIGRATE_UNSAFE, **options)

    guest.Guest.migrate = unsafe
